//! Durations, byte sizes and moments as they are written on the command line.

use std::time::Duration;

/// Times of the job are kept in 48 bits of milliseconds; 100 years leave room for sums.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Reads a duration with units: `250ms`, `3m`, `1h30m`, or ISO 8601 (`PT3M`). Hours are the largest unit, milliseconds the smallest.
pub fn duration(text: &str) -> Result<Duration, String> {
    const FORMS: &str = "write it as 250ms, 10s, 3m, 1h30m or PT3M";
    if text.parse::<f64>().is_ok() {
        return Err(format!("a duration needs a unit: {FORMS}"));
    }
    let signed: jiff::SignedDuration = text.parse().map_err(|_| format!("not a duration: {FORMS}"))?;
    match Duration::try_from(signed) {
        Err(_) => Err(format!("a duration cannot be negative: {FORMS}")),
        Ok(duration) if duration > LONGEST => Err("it is longer than 100 years".to_owned()),
        Ok(duration) if duration.subsec_nanos() % 1_000_000 != 0 => {
            Err("time is counted in whole milliseconds".to_owned())
        }
        Ok(duration) => Ok(duration),
    }
}

/// Reads a whole number of seconds above 0, without a unit: the form of the FASTEN job.
pub fn seconds(text: &str) -> Result<Duration, String> {
    // Finished keys are remembered for ten windows, which may not be too long either.
    const LONGEST_SECONDS: u64 = LONGEST.as_secs() / 10;
    match text.parse() {
        Ok(seconds @ 1..=LONGEST_SECONDS) => Ok(Duration::from_secs(seconds)),
        Ok(1..) => Err("it is longer than 10 years".to_owned()),
        _ => match duration(text) {
            Ok(duration) => {
                Err(format!("it is in seconds, a bare number as in FASTEN's job: {}", duration.as_secs().max(1)))
            }
            Err(_) => Err("it is a whole number of seconds, at least 1".to_owned()),
        },
    }
}

/// Reads a number of bytes with a unit: `512MiB`, `2GiB`, `100MB`, `65536B`.
pub fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let problem = || "not a size: write it as 512MiB, 2GiB, 100MB or 65536B".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let (_, factor) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(problem)?;
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor)).ok_or_else(problem)
}

/// Reads a moment, as milliseconds since the Unix epoch or in RFC 3339 (`2026-01-31T12:00:00Z`); gives milliseconds.
pub fn moment(text: &str) -> Result<u64, String> {
    const FORMS: &str = "write a time as 2026-01-31T12:00:00Z or in milliseconds since 1970";
    if let Ok(milliseconds) = text.parse() {
        return Ok(milliseconds);
    }
    let time: jiff::Timestamp = text.parse().map_err(|_| FORMS.to_owned())?;
    u64::try_from(time.as_millisecond()).map_err(|_| format!("a time before 1970 is not possible: {FORMS}"))
}

/// A moment in milliseconds since the Unix epoch as people read it, in UTC.
pub fn utc(milliseconds: u64) -> String {
    match i64::try_from(milliseconds).ok().and_then(|time| jiff::Timestamp::from_millisecond(time).ok()) {
        Some(time) => time.to_string(),
        None => "after the year 9999".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in
            [("250ms", 250), ("10s", 10_000), ("3m", 180_000), ("1h30m", 5_400_000), ("PT3M", 180_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "10", "1.5", "-3m", "soon", "PT", "3 parsecs", "10us", "900000h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_are_bare() {
        assert_eq!(seconds("180"), Ok(Duration::from_secs(180)));
        assert_eq!(seconds("3m").expect_err("a unit"), "it is in seconds, a bare number as in FASTEN's job: 180");
        for text in ["0", "-1", "1.5", "", "99999999999"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, size) in [("512MiB", 512 << 20), ("2 GiB", 2 << 30), ("100mb", 100_000_000), ("7B", 7)] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "512", "MiB", "1.5GiB", "-1B", "1XiB", "99999999TiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_have_two_forms() {
        assert_eq!(moment("1600000000000"), Ok(1_600_000_000_000));
        assert_eq!(moment("2020-09-13T12:26:40Z"), Ok(1_600_000_000_000));
        assert!(moment("2020-09-13").is_err() && moment("1960-01-01T00:00:00Z").is_err());
    }
}
