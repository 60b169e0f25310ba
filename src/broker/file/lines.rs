//! Cuts text into lines without copying them.

use std::io::{self, Read};

use bytes::Bytes;

/// How much is read at a time, in bytes. Smaller means more calls, larger means that a line that is kept keeps more.
pub(super) const BLOCK: usize = 256 << 10;

/// Text that was read and not given yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The bytes; lines that are given are slices of the same memory.
    rest: Bytes,
    /// Below it `rest` has no line end.
    searched: usize,
}

impl From<Bytes> for Lines {
    fn from(rest: Bytes) -> Self {
        Lines { rest, searched: 0 }
    }
}

impl Lines {
    /// The next whole line, with its line end.
    pub fn next_line(&mut self) -> Option<Bytes> {
        match memchr::memchr(b'\n', &self.rest[self.searched..]) {
            Some(found) => {
                let line = self.rest.split_to(self.searched + found + 1);
                self.searched = 0;
                Some(line)
            }
            None => {
                self.searched = self.rest.len();
                None
            }
        }
    }

    /// What is left: the beginning of a line.
    pub fn take_rest(&mut self) -> Bytes {
        self.searched = 0;
        std::mem::take(&mut self.rest)
    }

    /// The first byte that is left.
    pub fn first(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// How many bytes are left.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// Reads more, at most `available` bytes and about a block. Returns how many; 0 is the end.
    ///
    /// A line that does not fit into a block doubles it, so that a long line is not copied often.
    pub fn fill(&mut self, text: &mut (impl Read + ?Sized), available: u64) -> io::Result<usize> {
        let room = self.rest.len().max(BLOCK).min(usize::try_from(available).unwrap_or(usize::MAX));
        let mut block = Vec::with_capacity(self.rest.len() + room);
        block.extend_from_slice(&self.rest);
        let result = text.take(room as u64).read_to_end(&mut block);
        // What was read before an error stays.
        let read = block.len() - self.rest.len();
        if read > 0 {
            self.rest = Bytes::from(block);
        }
        result.map(|_| read)
    }
}

/// The line without its line end; `None` if it is blank.
pub(super) fn value(line: &Bytes) -> Option<Bytes> {
    let mut end = line.len();
    if line.ends_with(b"\n") {
        end -= 1;
    }
    if line[..end].ends_with(b"\r") {
        end -= 1;
    }
    let blank = line[..end].iter().all(u8::is_ascii_whitespace);
    (!blank).then(|| line.slice(..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_are_those_of_the_text(
            lines in prop::collection::vec("[a-z\r]{0,8}", 0..20),
            reads in prop::collection::vec(1u64..12, 1..50),
        ) {
            let text = lines.join("\n").into_bytes();
            let (mut cut, mut found, mut from) = (Lines::default(), vec![], &text[..]);
            for available in reads.iter().cycle() {
                while let Some(line) = cut.next_line() {
                    found.extend_from_slice(&line);
                    prop_assert_eq!(memchr::memchr(b'\n', &line), Some(line.len() - 1));
                }
                if cut.fill(&mut from, *available).unwrap() == 0 {
                    break;
                }
            }
            prop_assert!(cut.next_line().is_none());
            found.extend_from_slice(&cut.take_rest());
            prop_assert_eq!(found, text);
        }
    }

    #[test]
    fn a_value_is_a_line_without_its_end() {
        let value = |line: &'static str| value(&Bytes::from_static(line.as_bytes()));
        assert_eq!(value("a b\n").unwrap(), "a b");
        assert_eq!(value("a\r\n").unwrap(), "a");
        assert_eq!(value("a\r").unwrap(), "a");
        assert_eq!(value(" a ").unwrap(), " a ");
        assert_eq!(value(" \t\r\n"), None);
        assert_eq!(value("\n"), None);
    }

    #[test]
    fn lines_are_slices_of_one_block() {
        let mut lines = Lines::default();
        lines.fill(&mut &b"one\ntwo\nthree"[..], u64::MAX).unwrap();
        let (one, two) = (lines.next_line().unwrap(), lines.next_line().unwrap());
        assert_eq!(one.as_ptr().wrapping_add(one.len()), two.as_ptr());
        assert_eq!(lines.next_line(), None);
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn a_long_line_is_read_in_growing_blocks() {
        let text = vec![b'x'; 40 << 20];
        let (mut lines, mut from, mut fills) = (Lines::default(), &text[..], 0);
        while lines.fill(&mut from, u64::MAX).unwrap() > 0 {
            assert_eq!(lines.next_line(), None);
            fills += 1;
        }
        assert!(fills < 12, "{fills} blocks");
        assert_eq!(lines.take_rest().len(), 40 << 20);
    }
}
