"""What the page's forms send, and how it is read."""

from typing import Annotated, TypeVar
from urllib.parse import parse_qs

from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ValidationError

from app.simulator.records import AGENT, MEMBERS, PEOPLE, Member

#: A form as large as the longest description, every character escaped.
_MAX_FORM_BYTES = 2 * 1024 * 1024

Form = dict[str, str]
Model = TypeVar("Model", bound=BaseModel)


async def _form(request: Request) -> Form:
    """Forms of our own page only."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "forms are taken from this page only")
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > _MAX_FORM_BYTES:
            raise HTTPException(413, "the form is too large")
    return fields_of(received)


def fields_of(body: bytes | bytearray) -> Form:
    """The last value of each field of a form."""
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=50)
    except ValueError:
        raise HTTPException(400, "the form has too many fields") from None
    return {name: values[-1] for name, values in fields.items()}


Posted = Annotated[Form, Depends(_form)]


def who(form: Form) -> Member:
    """The person that was chosen; the agent's own doings are not the page's to play."""
    chosen = MEMBERS.get(form.get("who", ""), PEOPLE[0])
    return PEOPLE[0] if chosen is AGENT else chosen


def text(typed: str) -> str:
    """A text as the editor stores it: lines end in \\n, and a typed mention becomes a link."""
    handle = f"@{AGENT.mention_name}"
    stored = typed.replace("\r\n", "\n")[:100_000]
    return stored.replace(AGENT.mention, handle).replace(handle, AGENT.mention)


def filled_in(model: type[Model], form: Form) -> Model:
    """The fields that are filled in, as the model has them."""
    given = {name: form[name] for name in model.model_fields if name in form}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise HTTPException(422, f"{first['loc'][0]}: {first['msg']}") from None
