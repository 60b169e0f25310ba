//! The binary form of a frame.
//!
//! First the head, little-endian: the length of the body (u64), its CRC32C (u32), and a CRC32C (u32) of these two, of the nonce of
//! the segment, and of the position of the frame in it; so bytes that only look like a frame, be they a record's or those of an older
//! file, are none. The body, where a number is LEB128 and bytes come after their length:
//!
//! ```text
//! slot  lower  upper  clock  published
//! number of prepared, each: bytes
//! number of splits, each: source, split (u64), offset, time, timed (u8: 0 no, 1 yes, 2 unknown)
//! for each collection up to the end: name, number of updates, each: id (u128), diff (zigzag), bytes if diff > 0
//! ```

use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};

#[cfg(test)]
use super::Changes;
use super::{Frame, ItemId, ItemUpdate, SplitMark};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Offset, SplitId};
use crate::sink::Slot;
use crate::varint;

/// Bytes of the head.
pub(super) const HEAD: usize = 16;

/// What follows when a file is not what it was: the end of errors that name one.
pub(super) const MEND: &str = "bring the folder back from a copy, or give the job a new one";

fn head_crc(nonce: u64, position: u64, length_and_crc: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&nonce.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &position.to_le_bytes()), length_and_crc)
}

/// Puts a frame for this place of a segment into `out`, in place of what is there.
pub(super) fn encode(frame: &Frame, slot: Slot, nonce: u64, position: u64, out: &mut Vec<u8>) {
    out.clear();
    out.resize(HEAD, 0);
    for number in [slot.0 as u64, frame.lower, frame.upper, frame.clock, frame.published] {
        varint::put(number, out);
    }
    varint::put(frame.prepared.len() as u64, out);
    for prepared in &frame.prepared {
        put_bytes(prepared, out);
    }
    varint::put(frame.splits.len() as u64, out);
    for mark in &frame.splits {
        varint::put(mark.source.into(), out);
        out.extend_from_slice(&mark.split.to_bits().to_le_bytes());
        varint::put(mark.offset.0, out);
        varint::put(mark.time, out);
        out.push(mark.timed.map_or(2, u8::from));
    }
    for changes in &frame.changes {
        put_bytes(changes.collection.as_bytes(), out);
        varint::put(changes.updates.len() as u64, out);
        for update in &changes.updates {
            out.extend_from_slice(&update.id.0.to_le_bytes());
            varint::put((update.diff << 1 ^ update.diff >> 63) as u64, out);
            if update.diff > 0 {
                put_bytes(&update.bytes, out);
            }
        }
    }
    let length = (out.len() - HEAD) as u64;
    let crc = crc32c::crc32c(&out[HEAD..]);
    out[..8].copy_from_slice(&length.to_le_bytes());
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    let crc = head_crc(nonce, position, &out[..12]);
    out[12..HEAD].copy_from_slice(&crc.to_le_bytes());
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    varint::put(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// What a head says: how long the body is, and its CRC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub length: u64,
    crc: u32,
}

impl Head {
    /// The head at the front of `bytes`, if there is one for this place.
    pub fn read(bytes: &[u8], nonce: u64, position: u64) -> Option<Head> {
        let (number, rest) = bytes.split_first_chunk::<8>()?;
        let (crc, rest) = rest.split_first_chunk::<4>()?;
        let check = rest.first_chunk::<4>()?;
        let is_head = head_crc(nonce, position, &bytes[..12]) == u32::from_le_bytes(*check);
        is_head.then(|| Head { length: u64::from_le_bytes(*number), crc: u32::from_le_bytes(*crc) })
    }

    /// Whether this is the body.
    pub fn fits(self, body: &[u8]) -> bool {
        body.len() as u64 == self.length && crc32c::crc32c(body) == self.crc
    }
}

/// A frame as it was read: the changes of state are parsed when they are wanted.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub slot: Slot,
    pub lower: Epoch,
    pub upper: Epoch,
    pub clock: u64,
    pub published: Epoch,
    pub splits: Vec<SplitMark>,
    pub prepared: Vec<Bytes>,
    changes: Bytes,
    /// Where it stands, for errors.
    path: Arc<Path>,
    position: u64,
}

impl View {
    /// Parses a body, which stands in a file after the head at this position.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if it is no frame, though its CRC is right.
    pub fn read(mut body: Bytes, path: &Arc<Path>, position: u64) -> Result<View> {
        View::parse(&mut body, path, position).ok_or_else(|| damaged(path, position))
    }

    fn parse(rest: &mut Bytes, path: &Arc<Path>, position: u64) -> Option<View> {
        let slot = Slot(usize::try_from(number(rest)?).ok()?);
        let [lower, upper, clock, published] = [number(rest)?, number(rest)?, number(rest)?, number(rest)?];
        let mut prepared = vec![];
        for _ in 0..number(rest)? {
            prepared.push(take_bytes(rest)?);
        }
        let mut splits = vec![];
        for _ in 0..number(rest)? {
            splits.push(SplitMark {
                source: u32::try_from(number(rest)?).ok()?,
                split: SplitId::from_bits(rest.try_get_u64_le().ok()?),
                offset: Offset(number(rest)?),
                time: number(rest)?,
                timed: match rest.try_get_u8().ok()? {
                    2 => None,
                    flag @ 0..=1 => Some(flag == 1),
                    _ => return None,
                },
            });
        }
        let (changes, path) = (rest.clone(), Arc::clone(path));
        Some(View { slot, lower, upper, clock, published, splits, prepared, changes, path, position })
    }

    /// Gives every update of state with the name of its collection; the bytes are slices of what was read.
    ///
    /// # Errors
    ///
    /// Those of `update`; [`ErrorKind::Store`] if the updates do not parse.
    pub fn updates(&self, update: &mut dyn FnMut(&str, ItemUpdate) -> Result<()>) -> Result<()> {
        let damaged = || damaged(&self.path, self.position);
        let mut rest = self.changes.clone();
        while !rest.is_empty() {
            let name = take_bytes(&mut rest).ok_or_else(damaged)?;
            let name = std::str::from_utf8(&name).map_err(|_| damaged())?;
            for _ in 0..number(&mut rest).ok_or_else(damaged)? {
                update(name, take_update(&mut rest).ok_or_else(damaged)?)?;
            }
        }
        Ok(())
    }

    /// The whole frame.
    #[cfg(test)]
    pub fn frame(&self) -> Result<Frame> {
        let mut changes: Vec<Changes> = vec![];
        self.updates(&mut |name, update| {
            match changes.last_mut() {
                Some(last) if last.collection == name => last.updates.push(update),
                _ => changes.push(Changes { collection: name.to_owned(), updates: vec![update] }),
            }
            Ok(())
        })?;
        Ok(Frame {
            lower: self.lower,
            upper: self.upper,
            clock: self.clock,
            published: self.published,
            splits: self.splits.clone(),
            changes,
            prepared: self.prepared.clone(),
        })
    }
}

fn damaged(path: &Path, position: u64) -> Error {
    let text =
        format!("the frame at byte {position} of {path:?} has its checksum but does not parse: a fault of its writer");
    Error::new(ErrorKind::Store, format!("{text}; {MEND}"))
}

fn number(rest: &mut Bytes) -> Option<u64> {
    let (number, length) = varint::get(rest)?;
    rest.advance(length);
    Some(number)
}

fn take_bytes(rest: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(number(rest)?).ok()?;
    (length <= rest.len()).then(|| rest.split_to(length))
}

fn take_update(rest: &mut Bytes) -> Option<ItemUpdate> {
    let id = ItemId(rest.try_get_u128_le().ok()?);
    let zigzag = number(rest)?;
    let diff = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
    let bytes = if diff > 0 { take_bytes(rest)? } else { Bytes::new() };
    (diff != 0).then_some(ItemUpdate { id, diff, bytes })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
    }

    prop_compose! {
        fn mark()(source: u32, split: u64, offset: u64, time: u64, timed: Option<bool>) -> SplitMark {
            SplitMark { source, split: SplitId::from_bits(split), offset: Offset(offset), time, timed }
        }
    }

    prop_compose! {
        fn update()(id: u128, diff in any::<i64>(), bytes in bytes()) -> ItemUpdate {
            let diff = if diff == 0 { 1 } else { diff };
            ItemUpdate { id: ItemId(id), diff, bytes: if diff > 0 { bytes } else { Bytes::new() } }
        }
    }

    prop_compose! {
        pub fn frame()(
            lower: u64,
            upper: u64,
            clock: u64,
            published: u64,
            splits in prop::collection::vec(mark(), 0..4),
            changes in prop::collection::btree_map("[a-zä]{0,5}", prop::collection::vec(update(), 1..4), 0..4),
            prepared in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from), 0..3),
        ) -> Frame {
            let changes = changes.into_iter().map(|(collection, updates)| Changes { collection, updates }).collect();
            Frame { lower, upper, clock, published, splits, changes, prepared }
        }
    }

    fn path() -> Arc<Path> {
        Arc::from(Path::new("segment"))
    }

    proptest! {
        #[test]
        fn a_frame_comes_back(frame in frame(), slot in 0usize..9, nonce: u64, position: u64) {
            let mut out = vec![7; 3];
            encode(&frame, Slot(slot), nonce, position, &mut out);
            let head = Head::read(&out, nonce, position).unwrap();
            prop_assert!(head.fits(&out[HEAD..]));
            prop_assert!(Head::read(&out, nonce, position ^ 1).is_none() && Head::read(&out, nonce ^ 1, position).is_none());
            let view = View::read(Bytes::from(out).slice(HEAD..), &path(), 0).unwrap();
            prop_assert_eq!((view.slot, view.frame().unwrap()), (Slot(slot), frame));
        }

        #[test]
        fn any_body_is_a_frame_or_an_error(frame in frame(), junk in prop::collection::vec(any::<u8>(), 0..40), at: usize, cut: usize) {
            let mut out = vec![];
            encode(&frame, Slot(0), 0, 0, &mut out);
            let mut body = out.split_off(HEAD);
            let at = at % body.len();
            for (byte, junk) in body[at..].iter_mut().zip(&junk) {
                *byte = *junk;
            }
            body.truncate(cut % (body.len() + 1));
            for body in [Bytes::from(body), Bytes::from(junk)] {
                match View::read(body, &path(), 5).and_then(|view| view.frame()) {
                    Ok(_) => {}
                    Err(error) => {
                        prop_assert_eq!(error.kind(), ErrorKind::Store);
                        prop_assert!(error.to_string().contains("byte 5 of \"segment\""));
                    }
                }
            }
        }
    }
}
