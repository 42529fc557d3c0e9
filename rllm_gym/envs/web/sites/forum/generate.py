"""Generates a forum with a history from a seed: threads, adverts, locked and pinned threads, and messages."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from random import Random

from rllm_gym.envs.web.sites.forum.pages import ForumApp
from rllm_gym.envs.web.sites.forum.state import Post, PrivateMessage, Thread
from rllm_gym.envs.web.sites.wording import any_day

BOARDS = {
    "Gardening": (
        (
            "basil",
            "tomatoes",
            "roses",
            "a small lawn",
            "herbs on a balcony",
            "an apple tree",
            "strawberries",
            "lavender",
        ),
        (
            "compost",
            "a drip hose",
            "raised beds",
            "clay pots",
            "pine bark",
            "a rain barrel",
            "bone meal",
            "a cold frame",
        ),
    ),
    "Cooking": (
        (
            "sourdough",
            "lentil soup",
            "dumplings",
            "a cheap stove",
            "pancakes",
            "fried rice",
            "pickles",
            "a large pot roast",
        ),
        (
            "a cast-iron pan",
            "rye flour",
            "sea salt",
            "a slow oven",
            "fresh stock",
            "a digital scale",
            "sesame oil",
            "butter",
        ),
    ),
    "Photography": (
        (
            "birds",
            "night skies",
            "portraits",
            "street scenes",
            "small products",
            "a school play",
            "insects",
            "old prints",
        ),
        (
            "a tripod",
            "a prime lens",
            "manual focus",
            "a grey card",
            "longer exposure",
            "a flash",
            "raw files",
            "a remote",
        ),
    ),
    "Cycling": (
        (
            "a daily commute",
            "gravel roads",
            "winter",
            "a long tour",
            "steep hills",
            "a child seat",
            "night rides",
            "rain",
        ),
        (
            "wider tyres",
            "mudguards",
            "a hub dynamo",
            "bar mitts",
            "panniers",
            "disc brakes",
            "a belt drive",
            "low gears",
        ),
    ),
    "Home repair": (
        (
            "a dripping tap",
            "old windows",
            "a squeaky floor",
            "damp walls",
            "a loose tile",
            "a stuck door",
            "thin curtains",
        ),
        ("silicone", "wood glue", "lime plaster", "a new washer", "felt pads", "linseed oil", "a heat gun", "grout"),
    ),
    "Books": (
        (
            "a train journey",
            "a reading group",
            "teenagers",
            "a long winter",
            "learning history",
            "bedtime",
            "a beach day",
        ),
        (
            "short stories",
            "an atlas",
            "a sea novel",
            "old letters",
            "a detective series",
            "essays",
            "fairy tales",
            "poems",
        ),
    ),
}
TITLES = (
    "Best start with {}?",
    "Problems with {}",
    "What do you use for {}?",
    "My first try at {}",
    "Tips for {}",
    "Is it worth it: {}",
    "{}: what went wrong",
    "Show us your results: {}",
)
OPENINGS = (
    "I have been thinking about {} for a while and would like to hear from you.",
    "This is my second year with {} and I still have questions.",
    "We talked about {} at home yesterday and could not agree.",
    "After reading a lot about {} I am more confused than before.",
)
REPLIES = (
    "For me it was {} that made the difference.",
    "I would go with {}.",
    "Have you thought about {}? I recommend it.",
    "My advice: {}.",
    "After three years I still swear by {}.",
)
REMARKS = (
    "It takes some patience.",
    "It does not cost much either.",
    "My neighbour says the same.",
    "Let us know how it went.",
    "I can post a photo at the weekend.",
    "That is only my experience, of course.",
)
ADVERTS = (
    "CHEAP WATCHES!!! 90% off today only, write to me now!!!",
    "Earn $5000 a week from home, no skills needed, ask me how!!!",
    "Best casino bonus 2x, click my profile, hurry!!!",
    "Miracle pills, lose 20 kilos in a week, order here!!!",
)
NICKNAMES = (
    "amber", "birch", "cedar", "comet", "copper", "delta", "ember", "falcon", "fern", "flint", "gecko", "harbor",
    "hazel", "heron", "indigo", "ivy", "juniper", "kestrel", "lark", "lotus", "maple", "marlin", "nimbus", "olive",
    "opal", "otter", "pebble", "quartz", "raven", "river", "sable", "sparrow", "thistle", "tundra", "umber", "willow",
)  # fmt: skip

NUMBER_OF_BOARDS = {1: 3, 2: 4, 3: 5, 4: 6, 5: 6}
PER_BOARD = {1: 6, 2: 10, 3: 16, 4: 24, 5: 32}


def build(seed: int, difficulty: int, *, moderator: bool = False) -> ForumApp:
    """Build a forum with a history that includes adverts and locked threads."""
    rng = Random(f"forum/{seed}/{difficulty}")
    now = datetime.combine(any_day(rng), time(12, 0))
    users = make_users(rng, 8 + 4 * difficulty)
    boards, threads = make_threads(rng, users, now, difficulty)
    user = users[0]
    forum = ForumApp(
        now=now,
        user=user,
        users=users,
        boards=boards,
        threads={thread.number: thread for thread in threads},
        moderators=[user, users[1]] if moderator else [users[1], users[2]],
        closed_board=rng.choice(boards),
    )
    shuffled = rng.sample(threads, len(threads))
    for thread in shuffled[: 2 + difficulty]:
        thread.locked = True
    for thread in shuffled[1:3]:
        thread.pinned = True
    # The last member writes adverts, and also harmless posts that must be kept.
    for post in _claim(rng, threads, users[-1], 1 + difficulty):
        post.text, post.advice = rng.choice(ADVERTS), ""
    _claim(rng, [t for t in threads if all(p.advice for p in t.posts[1:])], user, 3)
    for thread in rng.sample(threads, 2 + difficulty):
        forum.subscribe(thread.number, True)
    for subject in ("Welcome to the forum", "About your last post"):
        text = "Please read the rules. They are short." if "Welcome" in subject else "Thank you, that helped me a lot."
        forum.messages.append(PrivateMessage(rng.choice(users[1:]), user, subject, text))
    return forum


def _claim(rng: Random, threads: list[Thread], author: str, count: int) -> list[Post]:
    """Assign answers in ``count`` open threads to this author, so that every member has some."""
    replies = []
    for thread in rng.sample([t for t in threads if not t.locked], count):
        post = rng.choice(thread.posts[1:])
        post.author = author
        replies.append(post)
    return replies


def make_users(rng: Random, count: int) -> list[str]:
    """Draw nicknames; some differ only in their digits."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[f"{rng.choice(NICKNAMES)}{rng.choice(('', '', '7', '12', '42', '88', '_b'))}"] = None
    return list(names)


def make_threads(rng: Random, users: list[str], end: datetime, difficulty: int) -> tuple[list[str], list[Thread]]:
    """Return boards and their threads of the four months before ``end``. No two posts have the same time."""
    boards = sorted(rng.sample(sorted(BOARDS), NUMBER_OF_BOARDS[difficulty]))
    count = PER_BOARD[difficulty]
    numbers = iter(rng.sample(range(1_000, 9_999), count * len(boards)))
    lengths = [rng.randint(2, 4 + 2 * difficulty) for _ in range(count * len(boards))]
    times = iter(rng.sample(range(60, 120 * 24 * 60), sum(lengths)))
    post_numbers = iter(rng.sample(range(10_000, 99_999), sum(lengths)))
    threads: list[Thread] = []
    for board in boards:
        subjects, advice = BOARDS[board]
        for code in rng.sample(range(len(subjects) * len(TITLES)), count):
            subject = subjects[code // len(TITLES)]
            title = TITLES[code % len(TITLES)].format(subject)
            thread = Thread(next(numbers), board, title[0].upper() + title[1:])
            ages = sorted((next(times) for _ in range(lengths[len(threads)])), reverse=True)
            for place, age in enumerate(ages):
                item = rng.choice(advice) if place else ""
                sentence = rng.choice(REPLIES).format(item) if place else rng.choice(OPENINGS).format(subject)
                thread.posts.append(
                    Post(
                        next(post_numbers),
                        rng.choice(users),
                        end - timedelta(minutes=age),
                        f"{sentence} {rng.choice(REMARKS)}",
                        item,
                        rng.randint(0, 40),
                    )
                )
            threads.append(thread)
    return boards, threads
