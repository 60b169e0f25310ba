//! Segments: files of frames.
//!
//! A segment begins with 56 bytes, numbers little-endian: the magic `syncline`, the version of the format (u32), the slot (u32, all
//! ones for a base), the run, the sequence, the hash of the job's name, the nonce (u64 each), four bytes of zero, and the CRC32C of
//! all that. Frames follow, each synced before the next is appended. So only the last one of a log can be torn by a crash; where one
//! is broken and a whole one follows, the file was damaged.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::disk::{Advice, DiskFile};
use super::frame::{Encoder, HEAD, Head, MEND};
use super::manifest::{End, Segment, VERSION, newer};
use super::place::{Place, failed};
use super::view::{View, WRONG_CHECKSUM, unread};
use super::{Frame, claim};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{RunNumber, Slot};

const MAGIC: &[u8; 8] = b"syncline";

/// Where the first frame of a segment stands, in bytes.
pub(super) const START: u64 = 56;

/// How much is read at a time, in bytes, where frames are smaller.
const PIECE: u64 = 64 << 10;

/// What the segments of a job have in common.
pub(super) fn hash_of_job(job: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(job.as_bytes())
}

fn header(segment: &Segment, job: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&segment.slot.map_or(u32::MAX, |slot| slot.0 as u32).to_le_bytes());
    for number in [segment.run.0, segment.sequence, job, segment.nonce] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&[0; 4]);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Makes an empty segment, with the first free sequence that is not below this one. Its name is not durable yet.
pub(super) fn create(place: &Place, job: u64, run: RunNumber, slot: Option<Slot>, sequence: u64) -> Result<Segment> {
    let mut segment = Segment { run, slot, sequence, nonce: claim::random(), end: None };
    while !place.create_new(&place.segments().join(segment.name()), &header(&segment, job))? {
        segment.sequence += 1;
    }
    Ok(segment)
}

/// Appends to a segment.
pub(super) struct Appender {
    file: Box<dyn DiskFile>,
    path: Arc<Path>,
    nonce: u64,
    /// The end of the last frame, in bytes.
    position: u64,
    encoder: Encoder,
}

impl Appender {
    /// Opens an empty segment.
    pub fn open(place: &Place, segment: &Segment) -> Result<Self> {
        let path: Arc<Path> = place.segments().join(segment.name()).into();
        let (file, length) = place.disk.open_append(&path, Advice::NoReuse).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Error::new(ErrorKind::Store, format!("{path:?} is open in another process: two workers have one log"))
            }
            _ => failed("be opened", &path, error),
        })?;
        if length != START {
            let text = format!("{path:?} has {length} bytes before it was written to: two workers have one log");
            return Err(Error::new(ErrorKind::Store, text));
        }
        Ok(Appender { file, path, nonce: segment.nonce, position: length, encoder: Encoder::default() })
    }

    /// Appends a frame. After an error nothing may be appended any more: part of it may be there.
    pub fn append(&mut self, frame: &Frame, slot: Slot) -> Result<()> {
        let Appender { file, path, nonce, position, encoder } = self;
        let written = encoder.encode(frame, slot, (*nonce, *position), &mut |bytes| file.append(bytes));
        self.position += written.map_err(|error| failed("be appended to", path, error))?;
        Ok(())
    }

    /// Returns when everything appended is durable.
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync().map_err(|error| failed("be synced", &self.path, error))
    }

    /// The end of the last frame, in bytes.
    pub fn position(&self) -> u64 {
        self.position
    }
}

/// The next part of a segment.
enum Part {
    Frame(View),
    /// There are no more bytes.
    Nothing,
    /// There are bytes that are no frame, and why not.
    Broken(&'static str),
}

/// Reads a segment, a frame at a time; of frames that are larger than a piece, the index alone.
pub(super) struct Reader<'a> {
    place: &'a Place,
    path: Arc<Path>,
    nonce: u64,
    end: Option<End>,
    /// Where `buffer` begins, in bytes.
    position: u64,
    buffer: Bytes,
    /// The payload of the last frame was not read: it may not be there.
    unseen: bool,
}

impl<'a> Reader<'a> {
    /// Opens a segment and checks that it is the one that the manifest means.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if it is missing, of another kind, run, worker or job, or of a newer version.
    pub fn open(place: &'a Place, segment: &Segment, job: u64) -> Result<Self> {
        let path: Arc<Path> = place.segments().join(segment.name()).into();
        let mut reader = Reader {
            place,
            path,
            nonce: segment.nonce,
            end: segment.end,
            position: 0,
            buffer: Bytes::new(),
            unseen: false,
        };
        reader.fill(START)?;
        let wanted = header(segment, job);
        let found = &reader.buffer[..reader.buffer.len().min(START as usize)];
        if found.get(..8) != Some(MAGIC) {
            return Err(reader.damaged(0, "it does not begin as a segment does"));
        }
        if let Some(version) = found.get(8..).and_then(|rest| rest.first_chunk().copied()).map(u32::from_le_bytes)
            && version > VERSION
        {
            return Err(newer(&reader.path, version));
        }
        if let Some(at) = (0..wanted.len()).find(|at| found.get(*at) != wanted.get(*at)) {
            return Err(reader.damaged(at as u64, "its head is not the one that was written"));
        }
        reader.skip(START);
        Ok(reader)
    }

    /// The next frame; `None` at the end of those that count.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if it is not there or damaged.
    pub fn next(&mut self) -> Result<Option<View>> {
        let Some(end) = self.end else { return Ok(self.next_of_open()?.ok()) };
        if self.position == end.bytes {
            let unseen = self.unseen && self.read(end.bytes - 1, 1)?.is_empty();
            return if unseen { Err(self.damaged(self.position, "its last frame is cut off")) } else { Ok(None) };
        }
        match self.part(false)? {
            Part::Frame(_) if self.position > end.bytes => {
                Err(self.damaged(end.bytes, "the manifest says that it ends here, but that is inside a frame"))
            }
            Part::Frame(view) => Ok(Some(view)),
            Part::Nothing => {
                Err(self.damaged(self.position, &format!("it ends here, but {} bytes were durable", end.bytes)))
            }
            Part::Broken(why) => Err(self.damaged(self.position, why)),
        }
    }

    /// The next frame of a segment that was being written: or at its end why there are bytes that are none, if there are any.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if a whole frame follows on a broken one.
    pub fn next_of_open(&mut self) -> Result<Result<View, Option<&'static str>>> {
        Ok(match self.part(true)? {
            Part::Frame(view) => Ok(view),
            Part::Nothing => Err(None),
            Part::Broken(why) => match self.find_later()? {
                Some(later) => {
                    let why = format!("{why}, but a whole frame follows at byte {later}: this was not a crash");
                    return Err(self.damaged(self.position, &why));
                }
                None => Err(Some(why)),
            },
        })
    }

    /// The end of the last frame that was read, in bytes.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads the next part; with its payload, if that is to be checked.
    fn part(&mut self, whole: bool) -> Result<Part> {
        self.fill(HEAD as u64)?;
        if self.buffer.is_empty() {
            return Ok(Part::Nothing);
        }
        let Some(head) = Head::read(&self.buffer, self.nonce, self.position) else {
            return Ok(Part::Broken("what stands here is not the head of a frame"));
        };
        let index = head.index.saturating_add(HEAD as u64);
        self.fill(if whole { head.length() } else { index })?;
        let have = self.buffer.len() as u64;
        if have < index || whole && have < head.length() {
            return Ok(Part::Broken("the file ends inside this frame"));
        }
        let index = self.buffer.slice(HEAD..index as usize);
        let payload = (have >= head.length()).then(|| self.buffer.slice(HEAD + index.len()..head.length() as usize));
        if !head.is_index(&index) {
            return Ok(Part::Broken(WRONG_CHECKSUM));
        }
        self.unseen = payload.is_none();
        let view = View::read(head, &index, payload, &self.path, self.position)?;
        if whole && !view.is_whole() {
            return Ok(Part::Broken(WRONG_CHECKSUM));
        }
        self.skip(head.length());
        Ok(Part::Frame(view))
    }

    fn skip(&mut self, length: u64) {
        match usize::try_from(length) {
            Ok(length) if length <= self.buffer.len() => self.buffer.advance(length),
            _ => self.buffer.clear(),
        }
        self.position = self.position.saturating_add(length);
    }

    /// Reads until there are so many bytes, or all up to the end of the file.
    fn fill(&mut self, length: u64) -> Result<()> {
        if (self.buffer.len() as u64) < length {
            self.buffer = self.read(self.position, length.max(PIECE))?;
        }
        Ok(())
    }

    fn read(&self, position: u64, most: u64) -> Result<Bytes> {
        let read = self.place.disk.read_at(&self.path, position, most, self.place.advice);
        read.map_err(|error| unread(&self.path, error))
    }

    /// Where the first whole frame stands behind the place where there is none.
    fn find_later(&mut self) -> Result<Option<u64>> {
        self.fill(u64::MAX)?;
        let bytes = &self.buffer;
        let is_frame = |at: &usize| {
            // Most bytes are told by the length alone.
            let (at, rest) = (*at, &bytes[*at..]);
            let length = rest.first_chunk::<8>().map_or(u64::MAX, |length| u64::from_le_bytes(*length));
            if length > rest.len() as u64 {
                return false;
            }
            let position = self.position + at as u64;
            let head = Head::read(rest, self.nonce, position).filter(|head| head.length() <= rest.len() as u64);
            head.is_some_and(|head| {
                let (index, end) = (at + HEAD + head.index as usize, at + head.length() as usize);
                let (index, payload) = (bytes.slice(at + HEAD..index), bytes.slice(index..end));
                let view = || View::read(head, &index, Some(payload), &self.path, position);
                head.is_index(&index) && view().is_ok_and(|view| view.is_whole())
            })
        };
        Ok((1..bytes.len()).find(is_frame).map(|at| self.position + at as u64))
    }

    fn damaged(&self, position: u64, why: &str) -> Error {
        Error::new(ErrorKind::Store, format!("{:?} is damaged at byte {position}: {why}; {MEND}", self.path))
    }
}

/// Gives every frame that counts of these segments; stops where `frame` fails.
pub(super) fn for_each(
    place: &Place,
    segments: &[Segment],
    job: u64,
    frame: &mut dyn FnMut(View) -> Result<()>,
) -> Result<()> {
    for segment in segments {
        let mut reader = Reader::open(place, segment, job)?;
        while let Some(view) = reader.next()? {
            frame(view)?;
        }
    }
    Ok(())
}

/// The frames of a segment that was being written, one by one: where each ends, in bytes, and the ends of their ranges.
pub(super) struct Scan {
    pub ends: Vec<(u64, Epoch)>,
    /// Where something stands that is no frame, and why not.
    pub torn: Option<(u64, &'static str)>,
}

/// Reads a segment and notes where it can be cut.
pub(super) fn scan(place: &Place, segment: &Segment, job: u64) -> Result<Scan> {
    let mut reader = Reader::open(place, segment, job)?;
    let mut ends = vec![];
    loop {
        let next = match segment.end {
            Some(_) => reader.next()?.ok_or(None),
            None => reader.next_of_open()?,
        };
        match next {
            Ok(view) => ends.push((reader.position(), view.upper)),
            Err(torn) => return Ok(Scan { ends, torn: torn.map(|why| (reader.position(), why)) }),
        }
    }
}
