"""A shop: catalogue, basket, coupons, checkout, orders, returns, reviews and a wish list."""

from rllm_gym.envs.web.sites.shop.generate import build
from rllm_gym.envs.web.sites.shop.pages import ORIGIN, ShopApp
from rllm_gym.envs.web.sites.shop.tasks import TEMPLATES

__all__ = ["ORIGIN", "TEMPLATES", "ShopApp", "build"]
