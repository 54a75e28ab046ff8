"""Neutral texts that any language model should find likely, and an odd one that a tokenizer must give back."""

from __future__ import annotations

PROSE = (
    "The sun rises in the east and sets in the west. In the morning the light is soft, and people go to work. At "
    "noon it is warm, and in the evening families come home, eat together and talk about the day. Water freezes at "
    "zero degrees and boils at one hundred degrees. There are seven days in a week and twelve months in a year."
)
CODE = "def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n    print(i, add(i, 1))\n"
CHINESE = "太阳从东方升起，在西方落下。早上光线柔和，人们去上班。中午很暖和，晚上一家人回家，一起吃饭，谈谈这一天。"
NEUTRAL = {"prose": PROSE, "code": CODE, "Chinese": CHINESE}

ROUND_TRIP = {
    **NEUTRAL,
    "digits and spaces": "1234567890  3.14159, 2,718\n\n\tindented   by tabs\n",
    "accents and emoji": "Ça va? Straße, naïve, Привет, مرحبا, 안녕하세요 👩‍🚀",
}

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
"""A question and its whole answer: where a chat model should end."""
