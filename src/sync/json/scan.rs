//! A scanner that checks JSON text and knows where its values stand. It builds nothing and allocates nothing.
//!
//! It exists beside serde_json because the synchronization job needs things that a deserializer hides or makes costly: the exact
//! text of values, duplicate members, one stack of brackets for all records (serde_json allocates one for every record that
//! nests), and speed, because every byte of every record passes here (`benches/json.rs`). The tests compare what it accepts with
//! serde_json.

/// Where text stops to be JSON, and what was expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Syntax {
    /// The byte, counted from 0.
    pub(super) at: usize,
    /// What is wrong, to be read after a position.
    pub(super) problem: &'static str,
}

/// Text as it stands between two quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted<'a> {
    /// Without the quotes.
    pub(super) text: &'a str,
    /// Whether it has escapes.
    pub(super) escaped: bool,
}

/// A position in a text that is being checked.
pub(super) struct Scanner<'a, 's> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Closing brackets of the containers around a value that is skipped. On the heap, so that nesting is bounded by memory only.
    open: &'s mut Vec<u8>,
}

impl<'a, 's> Scanner<'a, 's> {
    /// A scanner at the start of a text. The stack is emptied and kept.
    pub(super) fn new(text: &'a str, open: &'s mut Vec<u8>) -> Self {
        open.clear();
        Scanner { text, bytes: text.as_bytes(), at: 0, open }
    }

    /// The next byte; 0, which is never right in JSON, at the end.
    #[inline]
    pub(super) fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    /// Passes the byte that was peeked at.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.at += 1;
    }

    #[inline]
    pub(super) fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    #[cold]
    pub(super) fn error<T>(&self, problem: &'static str) -> Result<T, Syntax> {
        match self.at < self.bytes.len() {
            true => Err(Syntax { at: self.at, problem }),
            false => Err(Syntax { at: self.bytes.len(), problem: "the text ends too early" }),
        }
    }

    /// Passes space up to the end of the text.
    pub(super) fn finish(&mut self) -> Result<(), Syntax> {
        self.skip_space();
        match self.at == self.bytes.len() {
            true => Ok(()),
            false => self.error("there is more after the end of the value"),
        }
    }

    /// Passes the name of a member and the colon behind it.
    #[inline]
    pub(super) fn member(&mut self) -> Result<Quoted<'a>, Syntax> {
        self.skip_space();
        if self.peek() != b'"' {
            return self.error("expected the name of a member in quotes");
        }
        let name = self.quoted()?;
        self.skip_space();
        if self.peek() != b':' {
            return self.error("expected a colon");
        }
        self.at += 1;
        Ok(name)
    }

    /// Passes one value, whatever it is, and returns its text.
    #[inline]
    pub(super) fn value(&mut self) -> Result<&'a str, Syntax> {
        self.skip_space();
        let start = self.at;
        self.skip_value()?;
        Ok(&self.text[start..self.at])
    }

    /// Passes one value. A loop, not a recursion: any depth of nesting is fine.
    pub(super) fn skip_value(&mut self) -> Result<(), Syntax> {
        // The closing bracket of the innermost container; those around it are on the stack. 0 outside of all.
        let mut close = 0;
        self.skip_space();
        loop {
            match self.peek() {
                b'"' => {
                    self.quoted()?;
                }
                b'{' => {
                    self.at += 1;
                    self.skip_space();
                    if self.peek() == b'}' {
                        self.at += 1;
                    } else {
                        self.open.push(close);
                        close = b'}';
                        self.member()?;
                        self.skip_space();
                        continue;
                    }
                }
                b'[' => {
                    self.at += 1;
                    self.skip_space();
                    if self.peek() == b']' {
                        self.at += 1;
                    } else {
                        self.open.push(close);
                        close = b']';
                        continue;
                    }
                }
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                _ => return self.error("expected a value"),
            }
            // A value has ended, and perhaps the containers around it.
            loop {
                if close == 0 {
                    return Ok(());
                }
                self.skip_space();
                let byte = self.peek();
                if byte == b',' {
                    self.at += 1;
                    if close == b'}' {
                        self.member()?;
                    }
                    self.skip_space();
                    break;
                }
                if byte != close {
                    return self.error(if close == b'}' { "expected a comma or }" } else { "expected a comma or ]" });
                }
                self.at += 1;
                close = self.open.pop().unwrap_or(0);
            }
        }
    }

    #[inline]
    fn word(&mut self, word: &'static [u8]) -> Result<(), Syntax> {
        if !self.bytes[self.at..].starts_with(word) {
            return self.error("expected a value");
        }
        self.at += word.len();
        Ok(())
    }

    /// Passes a string that starts at the next byte.
    #[inline]
    fn quoted(&mut self) -> Result<Quoted<'a>, Syntax> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            // Eight bytes at a time up to the first that is a quote, a backslash or a control character.
            while let Some(chunk) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
                let special = special_bytes(u64::from_le_bytes(*chunk));
                if special != 0 {
                    self.at += special.trailing_zeros() as usize / 8;
                    break;
                }
                self.at += 8;
            }
            match self.peek() {
                b'"' => {
                    let text = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(Quoted { text, escaped });
                }
                b'\\' => {
                    escaped = true;
                    self.at += 1;
                    self.escape()?;
                }
                0..0x20 => return self.error("a control character in a string must be escaped"),
                _ => self.at += 1,
            }
        }
    }

    /// Passes what follows a backslash. Whether surrogates are paired is looked at only where the text is needed.
    fn escape(&mut self) -> Result<(), Syntax> {
        match self.peek() {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            b'u' => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_ascii_hexdigit() {
                        return self.error("expected four hexadecimal digits");
                    }
                    self.at += 1;
                }
            }
            _ => return self.error("there is no such escape"),
        }
        Ok(())
    }

    #[inline]
    fn number(&mut self) -> Result<(), Syntax> {
        if self.peek() == b'-' {
            self.at += 1;
        }
        match self.peek() {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    #[inline]
    fn digits(&mut self) -> Result<(), Syntax> {
        if !self.peek().is_ascii_digit() {
            return self.error("expected a digit");
        }
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        Ok(())
    }
}

/// Marks, by their highest bit, the bytes of a word that end a run of plain text: the lowest mark is right, those above it may be
/// wrong (a borrow runs upwards).
#[inline]
fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    // The flip of one bit puts the quote (0x22) in the place of the space (0x20), next to the control characters.
    let flipped = word ^ (ONES * 0x02);
    let quote_or_control = flipped.wrapping_sub(ONES * 0x21) & !flipped;
    let backslash = word ^ (ONES * b'\\' as u64);
    let backslash = backslash.wrapping_sub(ONES) & !backslash;
    (quote_or_control | backslash) & HIGHS
}
