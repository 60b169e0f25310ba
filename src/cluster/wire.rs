//! What processes say to each other before timely does: frames of a fixed form.
//!
//! A frame is the eight bytes `SYNCLINE`, the version of the protocol (2 bytes), the kind (1), the length of the body (4), and the
//! body; numbers are big-endian. A refusal is text in every version, so that any two versions can tell each other that they differ.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Changes with every change of a frame.
const PROTOCOL: u16 = 1;

const MAGIC: &[u8; 8] = b"SYNCLINE";

const HEADER: usize = MAGIC.len() + 2 + 1 + 4;

/// The largest body, in bytes: that of thousands of processes.
const LARGEST: usize = 64 << 10;

/// Between frames: the sender lives.
pub(super) const BEAT: u8 = 0;

/// Who a process is, and what it takes the job for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The version of this crate.
    pub version: String,
    pub job: String,
    /// The settings of the job: their names, and a hash of what they are (URLs may have passwords in them).
    pub settings: Vec<(String, u64)>,
    /// How many processes there are (`-n`), and the workers of each (`-w`).
    pub processes: u64,
    pub threads: u64,
    /// Which of them this is (`-p`).
    pub index: u64,
    /// Random: tells a process from an earlier one in its place.
    pub token: u64,
    /// When it gives up somebody who is silent, in milliseconds.
    pub peer_timeout: u64,
    /// Which process it expects here.
    pub to: u64,
    /// What the connection is for: beats and frames, or timely's data.
    pub is_beat: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello(Box<Hello>),
    /// The sender will not talk to the receiver, or leaves; and why.
    Refused(String),
    /// The sender has met everybody; the tokens of all processes, by index.
    Ready(Vec<u64>),
    /// The job is to stop.
    Stop,
}

/// Why no frame was read.
#[derive(Debug)]
pub(super) enum NoFrame {
    /// The connection ended, broke, or was silent for too long.
    Broken(io::Error),
    /// It is another protocol; the bytes that it began with.
    Garbage(Vec<u8>),
    /// It is a later or an earlier version of this protocol.
    Version(u16),
}

impl std::fmt::Display for NoFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoFrame::Broken(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => write!(f, "it said nothing"),
                io::ErrorKind::UnexpectedEof => write!(f, "it closed the connection"),
                _ => write!(f, "{error}"),
            },
            NoFrame::Garbage(bytes) => write!(f, "it is no process of a job, it sent \"{}\"", bytes.escape_ascii()),
            NoFrame::Version(version) => {
                write!(f, "it speaks version {version} of the protocol of processes, this one version {PROTOCOL}")
            }
        }
    }
}

impl Frame {
    /// The frame in bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, mut body) = match self {
            Frame::Hello(hello) => (1, bincode::serialize(hello).unwrap_or_default()), // a Vec takes all
            Frame::Refused(text) => (2, text.as_bytes().to_vec()),
            Frame::Ready(tokens) => (3, tokens.iter().flat_map(|token| token.to_be_bytes()).collect()),
            Frame::Stop => (4, vec![]),
        };
        if kind == 2 {
            body.truncate(LARGEST);
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(PROTOCOL.to_be_bytes());
        bytes.push(kind);
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        writer.write_all(&self.to_bytes())
    }
}

/// Reads frames, however the bytes come.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    bytes: Vec<u8>,
}

impl FrameReader {
    /// Reads on until a frame is whole; never beyond it. After [`io::ErrorKind::WouldBlock`] it can be called again.
    pub fn read(&mut self, reader: &mut impl Read) -> Result<Frame, NoFrame> {
        loop {
            let want = match self.missing()? {
                0 => return self.take(),
                missing => missing,
            };
            let have = self.bytes.len();
            self.bytes.resize(have + want, 0);
            let read = reader.read(&mut self.bytes[have..]);
            self.bytes.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(NoFrame::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(NoFrame::Broken(error)),
            }
            if have == 0 {
                let beats = self.bytes.iter().take_while(|byte| **byte == BEAT).count();
                self.bytes.drain(..beats);
            }
        }
    }

    /// How many bytes are missing for what is known of the frame.
    fn missing(&self) -> Result<usize, NoFrame> {
        let start = self.bytes.len().min(MAGIC.len());
        if self.bytes[..start] != MAGIC[..start] {
            return Err(NoFrame::Garbage(self.bytes.clone()));
        }
        if self.bytes.len() < HEADER {
            return Ok(HEADER - self.bytes.len());
        }
        let (version, kind, length) = self.header();
        if version != PROTOCOL && kind != 2 {
            return Err(NoFrame::Version(version));
        }
        if length > LARGEST {
            return Err(NoFrame::Garbage(self.bytes.clone()));
        }
        Ok(HEADER + length - self.bytes.len())
    }

    fn header(&self) -> (u16, u8, usize) {
        let at = MAGIC.len();
        let byte = |offset: usize| self.bytes[at + offset];
        let length = u32::from_be_bytes([byte(3), byte(4), byte(5), byte(6)]);
        (u16::from_be_bytes([byte(0), byte(1)]), byte(2), length as usize)
    }

    fn take(&mut self) -> Result<Frame, NoFrame> {
        let (_, kind, _) = self.header();
        let bytes = std::mem::take(&mut self.bytes);
        let body = &bytes[HEADER..];
        let number = |chunk: &[u8]| u64::from_be_bytes(chunk.try_into().unwrap_or_default());
        match kind {
            1 => bincode::deserialize(body).map(|hello| Frame::Hello(Box::new(hello))).ok(),
            2 => Some(Frame::Refused(String::from_utf8_lossy(body).into_owned())),
            3 if body.len().is_multiple_of(8) => Some(Frame::Ready(body.chunks(8).map(number).collect())),
            4 if body.is_empty() => Some(Frame::Stop),
            _ => None,
        }
        .ok_or(NoFrame::Garbage(bytes))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A process of a job of two.
    pub fn hello(index: u64) -> Hello {
        Hello {
            version: "1.2.3".into(),
            job: "job".into(),
            settings: vec![("late".into(), 1), ("window_time".into(), 2)],
            processes: 2,
            threads: 1,
            index,
            token: 40 + index,
            peer_timeout: 30_000,
            to: 1 - index,
            is_beat: false,
        }
    }

    /// Gives bytes in pieces, with a pause before each.
    struct Pieces<'a> {
        bytes: &'a [u8],
        sizes: Vec<usize>,
        pause: bool,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.pause = !self.pause;
            if self.pause {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let piece = self.sizes.pop().unwrap_or(usize::MAX).min(self.bytes.len());
            let read = self.bytes[..piece].as_ref().read(buffer)?;
            self.bytes = &self.bytes[read..];
            Ok(read)
        }
    }

    proptest! {
        #[test]
        fn frames_come_back_whole_and_nothing_behind_them_is_taken(
            kind in 0..4,
            text in ".{0,40}",
            tokens: Vec<u64>,
            beats in 0..20usize,
            sizes in prop::collection::vec(1..30usize, 0..200),
            rest: Vec<u8>,
        ) {
            let frame = match kind {
                0 => Frame::Hello(Box::new(Hello { job: text, ..hello(1) })),
                1 => Frame::Refused(text),
                2 => Frame::Ready(tokens),
                _ => Frame::Stop,
            };
            let bytes = [vec![BEAT; beats], frame.to_bytes(), rest.clone()].concat();
            let mut pieces = Pieces { bytes: &bytes, sizes, pause: false };
            let mut reader = FrameReader::default();
            let read = loop {
                match reader.read(&mut pieces) {
                    Err(NoFrame::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                    other => break other,
                }
            };
            prop_assert_eq!(read.unwrap(), frame);
            prop_assert_eq!(pieces.bytes, &rest[..]);
        }

        #[test]
        fn whatever_comes_is_a_frame_or_refused(magic: bool, bytes: Vec<u8>) {
            let bytes = [if magic { &MAGIC[..] } else { &[] }, &bytes].concat();
            let _ = FrameReader::default().read(&mut &bytes[..]); // does not panic
        }
    }

    #[test]
    fn other_protocols_and_versions_are_told_from_each_other() {
        let read = |bytes: &[u8]| FrameReader::default().read(&mut &bytes[..]);
        let garbage = read(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
        assert!(matches!(garbage, NoFrame::Garbage(_)), "{garbage}");
        assert!(garbage.to_string().contains(r#"sent "GET / HTTP"#), "{garbage}");
        let mut other = Frame::Hello(Box::new(hello(0))).to_bytes();
        other[9] = 7;
        assert!(matches!(read(&other), Err(NoFrame::Version(7))));
        let mut refusal = Frame::Refused("no".into()).to_bytes();
        refusal[9] = 7;
        assert_eq!(read(&refusal).unwrap(), Frame::Refused("no".into()));
        let mut large = Frame::Stop.to_bytes();
        large[11] = 0xff;
        assert!(matches!(read(&large), Err(NoFrame::Garbage(_))));
    }
}
