//! One record as a line of JSON, written member by member, and the ways in which a line can be bad.

/// What is wrong with a bad line. Every line has one fault at most, so its reason is never a matter of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// A byte that no UTF-8 text has, inside a string.
    ForeignByte,
    /// The line ends in the middle.
    CutOff,
    /// Text follows the end of the JSON value.
    TrailingText,
    /// An array holds the object.
    InArray,
    /// A key field is not there.
    KeyMissing,
    /// A key field is null.
    KeyNull,
    /// A key field is an object.
    KeyObject,
    /// A key field is an array.
    KeyArray,
    /// A key field stands twice, with different values.
    KeyTwice,
    /// There is no timestamp.
    TimeMissing,
    /// The timestamp is a text that is no time.
    TimeText,
}

impl Fault {
    /// Every fault.
    pub(super) const ALL: [Fault; 11] = [
        Fault::ForeignByte,
        Fault::CutOff,
        Fault::InArray,
        Fault::KeyMissing,
        Fault::KeyNull,
        Fault::KeyObject,
        Fault::KeyTwice,
        Fault::TimeMissing,
        Fault::TrailingText,
        Fault::KeyArray,
        Fault::TimeText,
    ];

    /// The reason under which a job counts such a line.
    #[cfg(test)]
    pub(super) fn reason(self) -> &'static str {
        match self {
            Fault::ForeignByte => "invalid_utf8",
            Fault::CutOff | Fault::TrailingText => "invalid_json",
            Fault::InArray => "not_an_object",
            Fault::KeyMissing => "key_missing",
            Fault::KeyNull => "key_null",
            Fault::KeyObject | Fault::KeyArray => "key_not_scalar",
            Fault::KeyTwice => "key_ambiguous",
            Fault::TimeMissing | Fault::TimeText => "invalid_timestamp",
        }
    }
}

/// A line that is being written to the end of a buffer.
pub(super) struct Line<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    fault: Option<Fault>,
    /// Key fields still to come before the one that the fault is about.
    keys_before: usize,
}

impl<'a> Line<'a> {
    /// Opens an object. A fault of a key field is about the one at index `damaged`, in the order of writing.
    pub(super) fn begin(out: &'a mut Vec<u8>, fault: Option<Fault>, damaged: usize) -> Self {
        let start = out.len();
        if fault == Some(Fault::InArray) {
            out.push(b'[');
        }
        out.push(b'{');
        Line { out, start, fault, keys_before: damaged }
    }

    /// Closes the object and ends the line.
    pub(super) fn end(self) {
        self.out.push(b'}');
        match self.fault {
            Some(Fault::InArray) => self.out.push(b']'),
            Some(Fault::TrailingText) => self.out.extend_from_slice(b" end"),
            Some(Fault::CutOff) => {
                let mut end = self.start + (self.out.len() - self.start) * 2 / 3;
                while self.out[end] & 0xc0 == 0x80 {
                    end -= 1; // not within a character: that would be another fault
                }
                self.out.truncate(end);
            }
            Some(Fault::ForeignByte) => {
                let text = self.out[self.start..].windows(2).position(|pair| pair == b":\"");
                self.out.insert(self.start + text.map_or(0, |at| at + 2), 0xff);
            }
            _ => {}
        }
        self.out.push(b'\n');
    }

    fn comma(&mut self) {
        if !matches!(self.out.last(), Some(b'{' | b'[')) {
            self.out.push(b',');
        }
    }

    fn name(&mut self, name: &str) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// Opens an object within the object.
    pub(super) fn open(&mut self, name: &str) {
        self.name(name);
        self.out.push(b'{');
    }

    /// Closes what `open` opened.
    pub(super) fn close(&mut self) {
        self.out.push(b'}');
    }

    /// A text.
    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        quote(self.out, value);
    }

    /// A whole number.
    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        decimal(self.out, value);
    }

    /// An array; `elements` is JSON already, with its commas.
    pub(super) fn array(&mut self, name: &str, elements: &str) {
        self.open_array(name);
        self.out.extend_from_slice(elements.as_bytes());
        self.close_array();
    }

    /// Opens an array.
    pub(super) fn open_array(&mut self, name: &str) {
        self.name(name);
        self.out.push(b'[');
    }

    /// Closes what `open_array` opened.
    pub(super) fn close_array(&mut self) {
        self.out.push(b']');
    }

    /// A key field that is a text.
    pub(super) fn key_text(&mut self, name: &str, value: &str) {
        self.key(name, |out| quote(out, value));
    }

    /// A key field that is a number.
    pub(super) fn key_number(&mut self, name: &str, value: u64) {
        self.key(name, |out| decimal(out, value));
    }

    /// A key field that is a number in an array. An element cannot stand twice: that fault moves on to the next key field.
    pub(super) fn key_element(&mut self, value: u64) {
        let fault = self.key_fault();
        match fault {
            Some(Fault::KeyMissing) => return,
            Some(Fault::KeyTwice) => self.keys_before = 0,
            _ => {}
        }
        self.comma();
        self.key_value(fault, |out| decimal(out, value));
    }

    fn key(&mut self, name: &str, value: impl Fn(&mut Vec<u8>)) {
        let fault = self.key_fault();
        match fault {
            Some(Fault::KeyMissing) => return,
            Some(Fault::KeyTwice) => self.text(name, "first"),
            _ => {}
        }
        self.name(name);
        self.key_value(fault, value);
    }

    /// The fault, if it is about the key field that comes now.
    fn key_fault(&mut self) -> Option<Fault> {
        let fault = if self.keys_before == 0 { self.fault } else { None };
        self.keys_before = self.keys_before.wrapping_sub(1);
        fault
    }

    fn key_value(&mut self, fault: Option<Fault>, value: impl Fn(&mut Vec<u8>)) {
        let (before, after): (&[u8], &[u8]) = match fault {
            Some(Fault::KeyNull) => return self.out.extend_from_slice(b"null"),
            Some(Fault::KeyObject) => (b"{\"value\":", b"}"),
            Some(Fault::KeyArray) => (b"[", b"]"),
            _ => (b"", b""),
        };
        self.out.extend_from_slice(before);
        value(self.out);
        self.out.extend_from_slice(after);
    }

    /// The timestamp, in milliseconds since the Unix epoch.
    pub(super) fn time_number(&mut self, name: &str, time: u64) {
        self.time(name, |out| decimal(out, time));
    }

    /// The timestamp, as RFC 3339 text with milliseconds, `offset_hours` east of Greenwich.
    pub(super) fn time_text(&mut self, name: &str, time: u64, offset_hours: u64) {
        self.time(name, |out| {
            out.push(b'"');
            rfc3339(out, time, offset_hours);
            out.push(b'"');
        });
    }

    fn time(&mut self, name: &str, value: impl Fn(&mut Vec<u8>)) {
        match self.fault {
            Some(Fault::TimeMissing) => {}
            Some(Fault::TimeText) => self.text(name, "yesterday"),
            _ => {
                self.name(name);
                value(self.out);
            }
        }
    }
}

/// Appends a JSON string.
pub(super) fn quote(out: &mut Vec<u8>, value: &str) {
    out.push(b'"');
    for byte in value.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Appends the digits of a number.
pub(super) fn decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Year, month and day of a day counted from 1970-01-01 (the algorithm of H. Hinnant's `civil_from_days`).
pub(super) fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + carry, month, day)
}

fn rfc3339(out: &mut Vec<u8>, time: u64, offset_hours: u64) {
    let local = time + offset_hours * 3_600_000;
    let (year, month, day) = civil(local / 86_400_000);
    let padded = |out: &mut Vec<u8>, value: u64, width: usize| {
        let start = out.len();
        decimal(out, value);
        while out.len() - start < width {
            out.insert(start, b'0');
        }
    };
    let second = local / 1_000;
    let parts = [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (second / 3_600 % 24, 2, b':'),
        (second / 60 % 60, 2, b':'),
        (second % 60, 2, b'.'),
        (local % 1_000, 3, if offset_hours == 0 { b'Z' } else { b'+' }),
    ];
    for (value, width, after) in parts {
        padded(out, value, width);
        out.push(after);
    }
    if offset_hours > 0 {
        padded(out, offset_hours, 2);
        out.extend_from_slice(b":00");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fault: Option<Fault>) -> String {
        let mut out = b"before\n".to_vec();
        let mut line = Line::begin(&mut out, fault, 1);
        line.time_number("at", 17);
        line.open("id");
        line.key_text("a", "x\"y");
        line.key_number("b", 3);
        line.close();
        line.end();
        let line = out.split_off(7);
        String::from_utf8_lossy(&line).into_owned()
    }

    #[test]
    fn a_line_is_json_and_a_bad_one_is_bad_as_told() {
        assert_eq!(line(None), "{\"at\":17,\"id\":{\"a\":\"x\\\"y\",\"b\":3}}\n");
        let texts = Fault::ALL.map(|fault| line(Some(fault)));
        let expected = [
            "{\"at\":17,\"id\":{\"a\":\"\u{fffd}x\\\"y\",\"b\":3}}\n",
            "{\"at\":17,\"id\":{\"a\":\"x\\\n",
            "[{\"at\":17,\"id\":{\"a\":\"x\\\"y\",\"b\":3}}]\n",
            "{\"at\":17,\"id\":{\"a\":\"x\\\"y\"}}\n",
            "{\"at\":17,\"id\":{\"a\":\"x\\\"y\",\"b\":null}}\n",
            "{\"at\":17,\"id\":{\"a\":\"x\\\"y\",\"b\":{\"value\":3}}}\n",
            "{\"at\":17,\"id\":{\"a\":\"x\\\"y\",\"b\":\"first\",\"b\":3}}\n",
            "{\"id\":{\"a\":\"x\\\"y\",\"b\":3}}\n",
            "{\"at\":17,\"id\":{\"a\":\"x\\\"y\",\"b\":3}} end\n",
            "{\"at\":17,\"id\":{\"a\":\"x\\\"y\",\"b\":[3]}}\n",
            "{\"at\":\"yesterday\",\"id\":{\"a\":\"x\\\"y\",\"b\":3}}\n",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for time in [0, 951_782_400_123, 1_583_020_799_999, 1_600_000_000_000, 4_107_542_399_001] {
            for hours in [0, 2] {
                let mut out = vec![];
                rfc3339(&mut out, time, hours);
                let text = String::from_utf8_lossy(&out).into_owned();
                let read = text.parse::<jiff::Timestamp>().map(|read| read.as_millisecond() as u64);
                assert_eq!(read.ok(), Some(time), "{text}");
            }
        }
    }
}
