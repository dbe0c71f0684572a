"""Throw a million malformed messages at the decoder, the parsers of both sockets and the record model: each is understood, or refused.

A message begins as one that an honest peer could send, and is then spoilt: wrong types and sizes in its fields, bytes flipped, cut off,
doubled or put in.  Nothing but ProtocolError (and RecordError for records) may come out; anything else is shown with the bytes that did it.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import msgpack

from npgxd.errors import NpgxError
from npgxd.toolchain.record import parse_record
from npgxd.wire import admin, limits
from npgxd.wire.codec import decode, pack_records, unpack_records
from npgxd.wire.parsing import REPLIES, REQUESTS, parse_reply, parse_request
from tools.cann_sim import records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.demo.children import Children

MESSAGES: Final = 1_000_000
SEED: Final = 20_260_101
_WORDS: Final = (
    "",
    "a",
    "0" * 32,
    "f" * 64,
    "../../etc/passwd",
    "a\0b",
    "x" * 300,
    "\ud7ff",
    "\x1b[2J",
    "RECORDING",
    "-1",
    "{}",
    "%s%n",
)
_NUMBERS: Final = (0, 1, -1, 255, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1)


@dataclass(slots=True)
class Tally:
    """What became of the messages."""

    understood: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)


def throw(count: int, seed: int = SEED) -> Tally:
    """Throw ``count`` messages; the same seed throws the same ones."""
    chance = random.Random(seed)  # noqa: S311 -- to be repeated, not to be secret
    tally = Tally()
    targets = _targets()
    for number in range(count):
        target, make = targets[number % len(targets)]
        given = make(chance)
        try:
            target(given)
            tally.understood += 1
        except NpgxError:
            tally.refused += 1
        except Exception as fault:  # noqa: BLE001 -- finding these is what this is for
            tally.faults.append(f"{type(fault).__name__}: {fault} from {given!r:.500}")
    return tally


def fuzz(directory: Path, children: Children) -> dict[str, str]:
    """The bench: a million messages."""
    del directory, children
    begun = time.perf_counter()
    tally = throw(MESSAGES)
    for fault in tally.faults[:20]:
        print(fault)
    if tally.faults:
        raise SystemExit(f"{len(tally.faults)} messages brought out something else than a refusal")
    return {
        "malformed messages": f"{MESSAGES:,} in {time.perf_counter() - begun:.0f} s: {tally.understood:,} understood, "
        f"{tally.refused:,} refused, 0 faults (seed {SEED})",
    }


def _targets() -> list[tuple[Callable[[Any], object], Callable[[random.Random], Any]]]:
    def request(parts: list[bytes]) -> object:
        return parse_request(decode(parts))

    def reply(parts: list[bytes]) -> object:
        return parse_reply(decode(parts))

    def administration(parts: list[bytes]) -> object:
        return admin.parse(decode(parts), admin.REQUESTS)

    honest = [json.dumps(item).encode() for item in records.many(40)]
    packed = pack_records((f"r{number}.json", raw) for number, raw in enumerate(honest))[0]
    return [
        (request, lambda chance: _message(chance, REQUESTS)),
        (reply, lambda chance: _message(chance, REPLIES)),
        (administration, lambda chance: _message(chance, admin.REQUESTS)),
        (lambda frame: unpack_records([frame]), lambda chance: _spoilt(chance, packed)),
        (lambda raw: parse_record("r.json", raw), lambda chance: _record(chance, honest)),
    ]


def _message(chance: random.Random, kinds: dict[str, Any]) -> list[bytes]:
    op = chance.choice([*kinds])
    header: dict[Any, Any] = {"v": limits.PROTOCOL_VERSION, "id": chance.randrange(1, 100), "op": op}
    for item in fields(kinds[op]):
        if chance.random() < 0.8:  # noqa: PLR2004 -- most of them
            header[item.name] = _value(chance, 3)
    if chance.random() < 0.2:  # noqa: PLR2004 -- some
        header[chance.choice(("v", "id", "op", "zz", 7))] = _value(chance, 2)
    parts = [msgpack.packb(header, strict_types=False, unicode_errors="surrogatepass")]
    if chance.random() < 0.3:  # noqa: PLR2004 -- some
        parts[0] = _spoilt(chance, parts[0])
    parts += [chance.randbytes(chance.randrange(0, 40)) for _ in range(chance.choice((0, 0, 1, 3)))]
    return parts if chance.random() > 0.01 else parts * limits.MAX_FRAMES  # noqa: PLR2004 -- few


def _value(chance: random.Random, depth: int) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: chance.choice(_NUMBERS),
        lambda: chance.choice(_WORDS),
        lambda: chance.choice(_WORDS),
        lambda: chance.choice((True, False, None)),
        lambda: chance.choice((0.0, -1.5, float("inf"), float("nan"), 1e308)),
        lambda: chance.randbytes(chance.randrange(0, 20)),
    ]
    if depth:
        kinds += [
            lambda: msgpack.ExtType(chance.randrange(0, 127), chance.randbytes(4)),
            lambda: [_value(chance, depth - 1) for _ in range(chance.randrange(0, 4))],
            lambda: {chance.choice(_WORDS): _value(chance, depth - 1) for _ in range(chance.randrange(0, 4))},
        ]
    return chance.choice(kinds)()


def _spoilt(chance: random.Random, honest: bytes) -> bytes:
    spoilt = bytearray(honest)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(spoilt) or 1)
        match chance.randrange(4):
            case 0 if spoilt:
                spoilt[min(place, len(spoilt) - 1)] ^= 1 << chance.randrange(8)
            case 1:
                del spoilt[place:]
            case 2:
                spoilt[place:place] = chance.randbytes(chance.randrange(1, 6))
            case _:
                spoilt[place:place] = spoilt[: chance.randrange(0, 64)]
    return bytes(spoilt)


def _record(chance: random.Random, honest: list[bytes]) -> bytes:
    """A record with some of its members changed, or its text spoilt."""
    raw = chance.choice(honest)
    if chance.random() < 0.4:  # noqa: PLR2004 -- the rest stays JSON
        return _spoilt(chance, raw)
    document = json.loads(raw)
    place: Any = document
    for _ in range(chance.randrange(0, 4)):
        inner = [key for key in (place if isinstance(place, dict) else range(len(place))) if isinstance(place[key], (dict, list))]
        if not inner:
            break
        place = place[chance.choice(inner)]
    keys = [*place] if isinstance(place, dict) else [*range(len(place))]
    if keys:
        place[chance.choice(keys)] = chance.choice((None, True, -1, 2**70, 1e400, "x", [], {}, [[[]]], "NULL", {"name": 3}))
    return json.dumps(document).encode()
