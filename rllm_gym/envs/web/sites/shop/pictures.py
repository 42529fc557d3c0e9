"""Drawings of the shop's products, by kind and colour, on a square of 100 units."""

from __future__ import annotations

from rllm_gym.envs.web.sites.http import Response
from rllm_gym.envs.web.sites.markup import h
from rllm_gym.envs.web.sites.pictures import drawing_rng, line, path, svg
from rllm_gym.envs.web.sites.shop.state import Product

_INKS = {
    "Black": "#33363b", "White": "#fbfbf8", "Red": "#c8372d", "Blue": "#2f6fb5", "Green": "#3a8a55", "Grey": "#9aa0a6",
    "Yellow": "#eec13f", "Copper": "#b8693a",
}  # fmt: skip
_GROUNDS = ("#fde8cf", "#dff0ea", "#e3e8fb", "#fbe1e4", "#eef0d8", "#e6e0f2")
# By noun: the shape in the colour of the product, and lines over it.
_SHAPES = {
    "Kettle": ("M32 38H66L74 78H26ZM66 44L82 34L84 40L71 54Z", "M40 38V30H58V38M28 46Q14 52 26 68"),
    "Toaster": ("M20 44Q20 36 28 36H72Q80 36 80 44V74H20Z", "M36 36V24H64V36M66 50V62M26 78H32M68 78H74"),
    "Blender": ("M34 20H68L62 56H40ZM38 60H64L70 82H32Z", "M34 20H68M51 30V48M46 72H56"),
    "Coffee Grinder": ("M30 46H70V80H30ZM34 46Q50 22 66 46Z", "M50 32V20H72M72 20V26M44 66H56"),
    "Hand Mixer": (
        "M22 34H72Q80 34 80 44V50H22Z",
        "M36 34Q36 20 60 22M36 50V80M56 50V80M30 66Q36 84 42 66M50 66Q56 84 62 66",
    ),
    "Rice Cooker": ("M24 46H76V70Q76 80 66 80H34Q24 80 24 70ZM28 42Q50 24 72 42Z", "M50 30V26M44 64H56"),
    "Desk Lamp": ("M52 22L78 34L64 50ZM28 76H60V82H28Z", "M44 76L34 52L58 34"),
    "Floor Lamp": ("M34 14H66L74 38H26ZM36 82H64V87H36Z", "M50 38V82"),
    "Night Light": ("M50 24A24 24 0 1 0 74 50A18 18 0 0 1 50 24Z", "M40 80H60M76 24V34M71 29H81"),
    "Ceiling Light": ("M26 52Q50 26 74 52Z", "M50 12V38M34 62L28 72M50 62V76M66 62L72 72"),
    "Wall Lamp": ("M24 26H32V76H24ZM48 34H74L80 58H42Z", "M32 66H60V58"),
    "Lantern": ("M34 38H66V76H34ZM30 76H70V82H30ZM38 28H62L66 36H34Z", "M42 28Q50 10 58 28M50 48V66"),
    "Watering Can": ("M34 44H66V80H34ZM34 66L14 46L18 42L34 56Z", "M44 44Q50 22 66 50M10 48L22 38"),
    "Hose Reel": ("M50 22A28 28 0 1 0 50.1 22Z", "M50 34A16 16 0 1 0 50.1 34ZM78 50Q90 66 78 84"),
    "Hand Trowel": ("M40 44H60Q66 66 50 86Q34 66 40 44ZM45 14H55V36H45Z", "M50 36V44M50 52V72"),
    "Pruning Saw": ("M12 58L62 34L66 44L18 66ZM62 32Q86 20 88 34Q86 46 68 46Z", "M20 68L26 62L29 66L35 58L38 62L44 54"),
    "Planter": ("M26 52H74L66 84H34Z", "M50 52V28M50 38Q36 36 34 22M50 34Q64 32 66 18"),
    "Bird Feeder": ("M34 40H66V70H34ZM26 40L50 20L74 40ZM28 70H72V76H28Z", "M50 20V10M42 54H58"),
    "Desk Organiser": ("M22 50H48V80H22ZM52 40H78V80H52Z", "M30 50V28M38 50V22M62 40V24M70 40L74 26"),
    "Stapler": ("M18 62H82V70H18ZM20 40Q56 28 80 50L78 56L20 54Z", "M24 62V54M72 62V58"),
    "Label Maker": ("M30 22H70V84H30Z", "M36 30H64V44H36ZM40 56H60M40 64H60M40 72H60"),
    "Paper Tray": ("M18 62H82V76H18ZM24 42H76V54H24Z", "M24 54V62M76 54V62M32 34H68M32 28H68"),
    "Whiteboard": ("M16 24H84V66H16Z", "M26 38Q38 30 46 42T70 36M34 66L28 84M66 66L72 84"),
    "Document Case": ("M18 38H82V76H18Z", "M38 38V28H62V38M18 54H82M50 50V58"),
    "Backpack": ("M28 44Q28 22 50 22T72 44V82H28Z", "M42 22V14H58V22M36 58H64V74H36ZM50 58V64"),
    "Suitcase": ("M26 34H74V82H26Z", "M42 34V16H58V34M38 42V74M50 42V74M62 42V74"),
    "Travel Pillow": (
        "M50 20A32 32 0 0 0 26 76Q34 82 40 72A18 18 0 1 1 60 72Q66 82 74 76A32 32 0 0 0 50 20Z",
        "M50 26V34",
    ),
    "Toiletry Bag": ("M20 44Q50 32 80 44V78H20Z", "M20 50H80M44 40Q50 24 56 40M66 50V58"),
    "Luggage Scale": ("M30 20H70V44H30ZM44 14H56V20H44Z", "M38 28H62V36H38ZM50 44V60Q62 64 58 74Q50 82 44 72"),
    "Duffel Bag": ("M16 50Q16 42 24 42H76Q84 42 84 50V76H16Z", "M34 42Q34 22 50 22T66 42M30 42V76M70 42V76"),
    "Headphones": ("M18 54H32V80H18ZM68 54H82V80H68Z", "M24 54Q24 22 50 22T76 54"),
    "Portable Speaker": ("M20 34H80V72H20Z", "M36 42A11 11 0 1 0 36.1 42ZM64 42A11 11 0 1 0 64.1 42ZM40 34V26H60V34"),
    "Soundbar": ("M8 46H92V64H8Z", "M16 55H26M34 55H66M74 55H84M18 64V70M82 64V70"),
    "Record Player": ("M14 32H86V74H14Z", "M42 36A17 17 0 1 0 42.1 36ZM42 51A2 2 0 1 0 42.1 51ZM76 38V54L64 64"),
    "Earbuds": (
        "M30 28A11 11 0 0 1 38 48L34 70H28L30 50A11 11 0 0 1 30 28ZM70 28A11 11 0 0 0 62 48L66 70H72L70 50Z",
        "M30 36V42M70 36V42",
    ),
    "Microphone": ("M38 16H62V50Q50 64 38 50Z", "M28 44Q30 68 50 68T72 44M50 68V84M36 84H64M40 30H60M40 40H60"),
}  # fmt: skip
_BOX = ("M20 36L50 22L80 36V72L50 86L20 72Z", "M20 36L50 50L80 36M50 50V86")


def product_picture(product: Product) -> Response:
    """Return the drawing of a product: its kind is the rest of its name after brand and series."""
    rng = drawing_rng(f"{product.category}/{product.number}")
    noun = product.name.split(" ", 2)[-1]
    colour = product.colours[0] if product.colours else rng.choice(sorted(_INKS))
    shape, details = _SHAPES.get(noun, _BOX)
    ground = rng.choice(_GROUNDS)
    dark = colour == "Black"
    return svg(
        120,
        90,
        h("rect", width=120, height=90, fill=ground),
        h("ellipse", cx=60, cy=80, rx=34, ry=4, fill="#000", fill_opacity=0.12),
        h(
            "g",
            path(shape, _INKS[colour], stroke="#3d3229", stroke_width=2, stroke_linejoin="round"),
            line(details, "#d5d5d0" if dark else "#3d3229", 2.5),
            transform="translate(16 0) scale(.88)",
        ),
    )
