"""The task templates of the shop."""

from __future__ import annotations

from rllm_gym.envs.web.sites.shop.account_tasks import (
    build_with_wishes,
    cancel,
    change_address,
    new_address,
    review,
    send_back,
    wish_brand,
    wish_sold_out,
)
from rllm_gym.envs.web.sites.shop.buying_tasks import basket, build_with_basket, buy, buy_cheapest
from rllm_gym.envs.web.sites.shop.generate import build
from rllm_gym.envs.web.sites.shop.reading_tasks import cheapest, count, specification, spent
from rllm_gym.envs.web.sites.task import WebTaskTemplate

LEVELS = (1, 2, 3, 4, 5)

TEMPLATES = (
    WebTaskTemplate("shop/cheapest", build, cheapest, LEVELS),
    WebTaskTemplate("shop/count", build, count, LEVELS),
    WebTaskTemplate("shop/specification", build, specification, LEVELS),
    WebTaskTemplate("shop/spent", build, spent, LEVELS),
    WebTaskTemplate("shop/buy", build, buy, LEVELS),
    WebTaskTemplate("shop/buy-cheapest", build, buy_cheapest, LEVELS),
    WebTaskTemplate("shop/basket", build_with_basket, basket, LEVELS),
    WebTaskTemplate("shop/cancel", build, cancel, LEVELS),
    WebTaskTemplate("shop/return", build, send_back, LEVELS),
    WebTaskTemplate("shop/review", build, review, LEVELS),
    WebTaskTemplate("shop/wish-brand", build, wish_brand, LEVELS),
    WebTaskTemplate("shop/wish-sold-out", build_with_wishes, wish_sold_out, LEVELS),
    WebTaskTemplate("shop/change-address", build, change_address, LEVELS),
    WebTaskTemplate("shop/new-address", build, new_address, LEVELS),
)
