"""The task templates of the shop."""

from __future__ import annotations

from rllm_gym.sites.errand import Template
from rllm_gym.sites.shop.buying import basket, build_with_basket, buy, buy_cheapest
from rllm_gym.sites.shop.keeping import (
    build_with_wishes,
    cancel,
    change_address,
    new_address,
    review,
    send_back,
    wish_brand,
    wish_sold_out,
)
from rllm_gym.sites.shop.reading import cheapest, count, specification, spent
from rllm_gym.sites.shop.state import build

LEVELS = (1, 2, 3, 4, 5)

TEMPLATES = (
    Template("shop/cheapest", build, cheapest, LEVELS),
    Template("shop/count", build, count, LEVELS),
    Template("shop/specification", build, specification, LEVELS),
    Template("shop/spent", build, spent, LEVELS),
    Template("shop/buy", build, buy, LEVELS),
    Template("shop/buy-cheapest", build, buy_cheapest, LEVELS),
    Template("shop/basket", build_with_basket, basket, LEVELS),
    Template("shop/cancel", build, cancel, LEVELS),
    Template("shop/return", build, send_back, LEVELS),
    Template("shop/review", build, review, LEVELS),
    Template("shop/wish-brand", build, wish_brand, LEVELS),
    Template("shop/wish-sold-out", build_with_wishes, wish_sold_out, LEVELS),
    Template("shop/change-address", build, change_address, LEVELS),
    Template("shop/new-address", build, new_address, LEVELS),
)
