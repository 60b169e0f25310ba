//! Decimal numbers by exact value: one text for each.

/// Numbers with at most so many digits before the point are written out; larger ones get an exponent.
const MAX_INTEGER_DIGITS: i128 = 40;
/// Numbers with at most so many zeros behind the point before the first other digit are written out.
const MAX_LEADING_ZEROS: i128 = 20;
/// Exponents with more digits than this do not fit an `i128`.
const MAX_EXPONENT_DIGITS: usize = 36;

/// Appends the one text that stands for the exact value of a JSON number: `1`, `1.0`, `1e0` and `10e-1` all give `1`.
///
/// The length of the result is bounded by that of `text` and a constant. A number whose exponent has more than 36 digits, and
/// text that is no number, stand for themselves.
pub(crate) fn canonical(text: &str, out: &mut String) {
    let (negative, magnitude) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let plain = magnitude.bytes().all(|byte| byte.is_ascii_digit());
    if plain && magnitude.len() <= MAX_INTEGER_DIGITS as usize && !magnitude.starts_with('0') && !magnitude.is_empty() {
        return out.push_str(text);
    }
    let (mantissa, exponent) = match magnitude.find(['e', 'E']) {
        Some(at) => (&magnitude[..at], &magnitude[at + 1..]),
        None => (magnitude, ""),
    };
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if integer.is_empty() || ![integer, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit())) {
        return out.push_str(text);
    }
    let all: String = [integer, fraction].concat();
    let digits = all.trim_start_matches('0');
    if digits.is_empty() {
        return out.push('0');
    }
    let Some(exponent) = parse_exponent(exponent) else {
        return out.push_str(text);
    };
    // The value is 0.DIGITS times ten to the power of `point`.
    let point = exponent + integer.len() as i128 - (all.len() - digits.len()) as i128;
    let digits = digits.trim_end_matches('0');
    write(negative, digits, point, out);
}

fn parse_exponent(text: &str) -> Option<i128> {
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    let digits = digits.trim_start_matches('0');
    match digits.len() {
        0 => Some(0),
        1..=MAX_EXPONENT_DIGITS => digits.parse::<i128>().ok().map(|exponent| sign * exponent),
        _ => None,
    }
}

fn write(negative: bool, digits: &str, point: i128, out: &mut String) {
    if negative {
        out.push('-');
    }
    let len = digits.len() as i128;
    if point > MAX_INTEGER_DIGITS || point <= -MAX_LEADING_ZEROS {
        let (first, rest) = digits.split_at(1);
        out.push_str(first);
        if !rest.is_empty() {
            out.push('.');
            out.push_str(rest);
        }
        out.push('e');
        out.push_str(&(point - 1).to_string());
    } else if point <= 0 {
        out.push_str("0.");
        out.extend((point..0).map(|_| '0'));
        out.push_str(digits);
    } else if point >= len {
        out.push_str(digits);
        out.extend((len..point).map(|_| '0'));
    } else {
        let (integer, fraction) = digits.split_at(point as usize);
        out.push_str(integer);
        out.push('.');
        out.push_str(fraction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> String {
        let mut out = String::new();
        canonical(text, &mut out);
        out
    }

    #[test]
    fn equal_values_have_one_text() {
        for (texts, expected) in [
            (&["1", "1.0", "1e0", "10e-1", "0.1e1", "1E+0", "1.000e-00", "0.001e3"][..], "1"),
            (&["0", "-0", "0.0", "-0.0e5", "0e999999999999999999999999999999999999999999"], "0"),
            (&["-12.50", "-1250e-2", "-0.125E2"], "-12.5"),
            (&["100", "1e2", "1.00e2", "10e+1"], "100"),
            (&["0.05", "5e-2", "50e-3"], "0.05"),
            (&["18446744073709551617", "18446744073709551617.0", "1844674407370955161.7e1"], "18446744073709551617"),
            (&["1e999999999", "10e999999998", "0.1e1000000000"], "1e999999999"),
            (&["1.5e-999999999", "15e-1000000000"], "1.5e-999999999"),
        ] {
            for text in texts {
                assert_eq!(of(text), expected, "{text}");
            }
        }
        assert_ne!(of("18446744073709551617"), of("18446744073709551616"));
        assert_ne!(of("0.1"), of("0.10000000000000001"));
    }

    #[test]
    fn absurd_exponents_stand_for_themselves() {
        let text = format!("1e{}", "9".repeat(60));
        assert_eq!(of(&text), text);
    }

    proptest! {
        /// A number written in any two ways has one text, and its text is a fixed point.
        #[test]
        fn shifted_writings_agree(mantissa in 1u64.., shift in 0u32..60, exponent in -90i64..90, zeros in 0usize..5) {
            let plain = of(&format!("{mantissa}e{exponent}"));
            let digits = mantissa.to_string();
            let padded = format!("{digits:0>70}");
            let (integer, fraction) = padded.split_at(70 - shift as usize);
            let integer = match integer.trim_start_matches('0') {
                "" => "0",
                some => some,
            };
            let shifted = format!("{integer}.{fraction}{}e{}", "0".repeat(zeros), exponent + i64::from(shift));
            let shifted = if shift == 0 && zeros == 0 { format!("{integer}e{exponent}") } else { shifted };
            prop_assert_eq!(&plain, &of(&shifted));
            prop_assert_eq!(&plain, &of(&plain));
            prop_assert!(plain.len() < digits.len() + 120);
        }
    }
}
