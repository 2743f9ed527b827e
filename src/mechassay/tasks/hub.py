"""Whether the Hugging Face hub can be reached, asked once and with a deadline.

Without a network the hub's own clients try again and again, for tens of seconds. Any answer counts,
an error too: what it means is for the client to say. Proxies are those of the environment.
"""

from __future__ import annotations

import ssl
from threading import Thread
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from mechassay.errors import BadFile, first_line

# Seconds until the hub has answered, looking up its name included.
DEADLINE = 2.5


def reachable(repo: str, endpoint: str) -> None:
    """Refuse a data set that would have to come from a hub which does not answer.

    Args:
        repo: the data set, for the message.
        endpoint: the hub's address.

    Raises:
        BadFile: no answer within `DEADLINE`.
    """
    answers: list[str] = []
    # Looking up a name has no time limit of its own, so the question has a thread to be left in.
    asking = Thread(target=lambda: answers.append(_asked(endpoint)), daemon=True)
    asking.start()
    asking.join(DEADLINE)
    refused = answers[0] if answers else f"no answer within {DEADLINE:g} s"
    if refused:
        raise BadFile(
            f"{repo}: the hub cannot be reached at {endpoint} ({refused}); HF_HUB_OFFLINE=1 reads"
            " what is cached, and source may be a folder of its rows."
        )


def _asked(endpoint: str) -> str:
    """Why an address does not answer; empty if it does."""
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=DEADLINE):
            return ""
    except HTTPError:
        return ""
    except URLError as error:
        # The client has certificates of its own; a server is there in any case.
        return (
            "" if isinstance(error.reason, ssl.SSLError) else first_line(error.reason).rstrip(".")
        )
    except (OSError, ValueError) as error:
        return first_line(error).rstrip(".")
