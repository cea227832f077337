"""Languages by code, and those whose numbers can be written in words."""

from babel import Locale, UnknownLocaleError
from num2words import CONVERTER_CLASSES

from addnorm.errors import InputError, nearest

# num2words 0.5.14 fails (am) or errs (az) on four digits, writes Serbian in the other script than
# CLDR, and knows two languages by names that CLDR has not.
SPOKEN = frozenset[str](CONVERTER_CLASSES) - {"am", "az", "sr", "kz", "tet"}
LANGUAGES = tuple(sorted({name.split("_")[0] for name in SPOKEN} | {"zh"}))
"""Languages with both CLDR dates and numbers in words; other CLDR languages get digits."""


def locale_called(name: str) -> Locale:
    """The language with this code. Raises `InputError` for a code that CLDR does not have."""
    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        codes = {str(Locale(code).english_name).lower(): code for code in LANGUAGES}
        hint = nearest(codes.get(name.lower(), name), LANGUAGES)
        raise InputError(
            f"`to = {name!r}`: no such language.{hint} "
            f"Known, with numbers in words: {', '.join(LANGUAGES)}; "
            "CLDR's other languages work too, with numbers in digits."
        ) from error
