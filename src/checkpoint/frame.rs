//! The binary form of a frame: a head, an index, and a payload, so that what came and went can be known without its bytes.
//!
//! The head, little-endian: the lengths of index and payload (u64 each), the CRC32C of the index (u32), and a CRC32C (u32) of these, of
//! the nonce of the segment, and of the position of the frame in it; so bytes that only look like a frame, be they a record's or those
//! of an older file, are none. The index, where a number is LEB128 and bytes come after their length:
//!
//! ```text
//! slot  lower  upper  clock  published
//! number of splits, each: source, split (u64), offset, time, timed (u8: 0 no, 1 yes, 2 unknown)
//! number of sections, each: name of the collection, number of updates, how many of them are negative, length of the items,
//!     updates as bytes, each: id (u128), diff (zigzag), length of the item unless diff < 0
//! for each writer: length, number of items in it, each: at, length, collection (u64), id (u128)
//! ```
//!
//! A collection has up to two sections, of its small items and of its large ones: mostly these live for different times, and who
//! reads what is left need not read what is gone. The payload is the items of each section, in the order of their updates, and at the
//! end what the writers prepared, without the items that it refers to; each with its CRC32C (u32) behind it.

use std::io;

use bytes::Bytes;

use super::disk::PAGE;
use super::{Changes, Frame, ItemUpdate};
use crate::sink::{Inserted, Prepared, Slot};
use crate::varint;

/// Bytes of the head.
pub(super) const HEAD: usize = 24;

/// Bytes of the checksum behind each part of a payload.
pub(super) const CHECK: usize = 4;

/// Items from so many bytes on are large.
const LARGE: usize = 256;

/// What follows when a file is not what it was: the end of errors that name one.
pub(super) const MEND: &str = "bring the folder back from a copy, or give the job a new one";

/// How much of a frame is put together before it is written, in bytes: to a device, few large writes cost less.
const BLOCK: usize = 1 << 20;

fn head_crc(nonce: u64, position: u64, lengths_and_crc: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&nonce.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &position.to_le_bytes()), lengths_and_crc)
}

/// Writes frames, block by block.
#[derive(Default)]
pub(super) struct Encoder {
    /// Head and index of a frame; empty between frames.
    front: Vec<u8>,
    block: Block,
}

/// What is to be written next. It stands in memory as it will in the file, and ends there with a page (see [`LocalDisk`]).
#[derive(Default)]
struct Block {
    /// Nothing, or a block and a page.
    memory: Box<[u8]>,
    /// Where in memory it begins and where it ends.
    start: usize,
    end: usize,
}

impl Block {
    /// Begins one that is written to this position of a file.
    fn begin(&mut self, position: u64) {
        if self.memory.is_empty() {
            self.memory = vec![0; BLOCK + PAGE].into();
        }
        let page = self.memory.as_ptr().addr().wrapping_neg() % PAGE;
        self.start = page + position as usize % PAGE;
        self.end = self.start;
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// Puts as much of these bytes as there is room for; what is left.
    fn put<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let most = self.memory.as_ptr().addr().wrapping_neg() % PAGE + BLOCK;
        let (now, later) = bytes.split_at(bytes.len().min(most - self.end));
        self.memory[self.end..self.end + now.len()].copy_from_slice(now);
        self.end += now.len();
        later
    }
}

impl Encoder {
    /// Gives the bytes of a frame for this place of a segment to `write`, in blocks. Returns how many there were.
    ///
    /// # Errors
    ///
    /// Those of `write`: then part of the frame may be written.
    pub fn encode(
        &mut self,
        frame: &Frame,
        slot: Slot,
        (nonce, position): (u64, u64),
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let sections = sections(frame);
        let Encoder { front, block } = self;
        front.clear();
        front.shrink_to(8 * BLOCK); // it may have been huge
        front.resize(HEAD, 0);
        put_index(frame, &sections, slot, front);
        let index = front.len() - HEAD;
        let prepared: usize = frame.prepared.iter().map(Prepared::own_bytes).sum();
        let payload: u64 = sections.iter().map(|section| section.items + CHECK as u64).sum();
        let payload = payload + (prepared + CHECK) as u64;
        let crc = crc32c::crc32c(&front[HEAD..]);
        front[..8].copy_from_slice(&(index as u64).to_le_bytes());
        front[8..16].copy_from_slice(&payload.to_le_bytes());
        front[16..20].copy_from_slice(&crc.to_le_bytes());
        let crc = head_crc(nonce, position, &front[..20]);
        front[20..HEAD].copy_from_slice(&crc.to_le_bytes());
        block.begin(position);
        let mut blocks = Blocks { summed: block.start, block, crc: 0, position, write };
        blocks.put(front)?;
        blocks.open();
        for section in &sections {
            for update in section.updates().filter(|update| update.diff >= 0) {
                blocks.put(&update.bytes)?;
                update.rest.as_ref().map_or(Ok(()), |rest| blocks.put(rest))?;
            }
            blocks.check()?;
        }
        frame.prepared.iter().flat_map(Prepared::pieces).try_for_each(|piece| blocks.put(piece))?;
        blocks.check()?;
        blocks.flush()?;
        Ok((HEAD + index) as u64 + payload)
    }
}

/// Puts a payload together, block by block.
struct Blocks<'a> {
    block: &'a mut Block,
    /// The CRC of the open part, but for what stands in the block from `summed` on.
    crc: u32,
    summed: usize,
    /// Where in the file the block begins.
    position: u64,
    write: &'a mut dyn FnMut(&[u8]) -> io::Result<()>,
}

impl Blocks<'_> {
    fn put(&mut self, piece: &[u8]) -> io::Result<()> {
        let mut left = self.block.put(piece);
        while !left.is_empty() {
            self.flush()?;
            left = self.block.put(left);
        }
        Ok(())
    }

    /// Writes what there is.
    fn flush(&mut self) -> io::Result<()> {
        self.sum();
        let bytes = self.block.bytes();
        (self.write)(bytes)?;
        self.position += bytes.len() as u64;
        self.block.begin(self.position);
        self.summed = self.block.start;
        Ok(())
    }

    fn sum(&mut self) {
        self.crc = crc32c::crc32c_append(self.crc, &self.block.memory[self.summed..self.block.end]);
        self.summed = self.block.end;
    }

    /// Begins a part.
    fn open(&mut self) {
        (self.crc, self.summed) = (0, self.block.end);
    }

    /// Ends a part, and begins the next one.
    fn check(&mut self) -> io::Result<()> {
        self.sum();
        let crc = self.crc.to_le_bytes();
        self.put(&crc)?;
        self.open();
        Ok(())
    }
}

/// The updates of a collection whose items are small, or large.
struct Section<'a> {
    /// All pieces of the collection.
    changes: &'a [Changes],
    large: bool,
    updates: u64,
    negative: u64,
    /// Bytes of the items.
    items: u64,
}

impl<'a> Section<'a> {
    fn updates(&self) -> impl Iterator<Item = &'a ItemUpdate> + use<'a> {
        let large = self.large;
        self.changes.iter().flat_map(|changes| &changes.updates).filter(move |update| is_large(update) == large)
    }
}

fn length(update: &ItemUpdate) -> usize {
    if update.diff < 0 { 0 } else { update.len() }
}

fn is_large(update: &ItemUpdate) -> bool {
    length(update) >= LARGE
}

fn sections(frame: &Frame) -> Vec<Section<'_>> {
    let mut sections = vec![];
    for changes in frame.changes.chunk_by(|one, next| one.collection == next.collection) {
        let mut both = [false, true].map(|large| Section { changes, large, updates: 0, negative: 0, items: 0 });
        for update in changes.iter().flat_map(|changes| &changes.updates) {
            let section = &mut both[usize::from(is_large(update))];
            section.updates += 1;
            section.negative += u64::from(update.diff < 0);
            section.items += length(update) as u64;
        }
        sections.extend(both.into_iter().filter(|section| section.updates > 0));
    }
    sections
}

fn put_index(frame: &Frame, sections: &[Section<'_>], slot: Slot, out: &mut Vec<u8>) {
    for number in [slot.0 as u64, frame.lower, frame.upper, frame.clock, frame.published] {
        varint::put(number, out);
    }
    varint::put(frame.splits.len() as u64, out);
    for mark in &frame.splits {
        varint::put(mark.source.into(), out);
        out.extend_from_slice(&mark.split.to_bits().to_le_bytes());
        varint::put(mark.offset.0, out);
        varint::put(mark.time, out);
        out.push(mark.timed.map_or(2, u8::from));
    }
    varint::put(sections.len() as u64, out);
    let mut updates = vec![];
    for section in sections {
        updates.clear();
        for update in section.updates() {
            updates.extend_from_slice(&update.id.0.to_le_bytes());
            varint::put((update.diff << 1 ^ update.diff >> 63) as u64, &mut updates);
            if update.diff >= 0 {
                varint::put(length(update) as u64, &mut updates);
            }
        }
        put_bytes(section.changes[0].collection.as_bytes(), out);
        for number in [section.updates, section.negative, section.items] {
            varint::put(number, out);
        }
        put_bytes(&updates, out);
    }
    frame.prepared.iter().for_each(|prepared| put_prepared(prepared, out));
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    varint::put(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Puts the index of what a writer prepared.
fn put_prepared(prepared: &Prepared, out: &mut Vec<u8>) {
    varint::put(prepared.own_bytes() as u64, out);
    let items = prepared.inserts.iter().filter(|insert| matches!(insert.what, Inserted::Item { .. }));
    varint::put(items.count() as u64, out);
    let mut shared = 0;
    for insert in &prepared.inserts {
        match &insert.what {
            Inserted::Bytes(bytes) => shared += bytes.len(),
            Inserted::Item { item, length } => {
                varint::put((insert.at + shared) as u64, out);
                varint::put(*length as u64, out);
                out.extend_from_slice(&item.collection.0.to_le_bytes());
                out.extend_from_slice(&item.id.0.to_le_bytes());
            }
        }
    }
}

/// What a head says: how long index and payload are, and the CRC of the index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub index: u64,
    pub payload: u64,
    index_crc: u32,
}

impl Head {
    /// The head at the front of `bytes`, if there is one for this place.
    pub fn read(bytes: &[u8], nonce: u64, position: u64) -> Option<Head> {
        let (index, rest) = bytes.split_first_chunk::<8>()?;
        let (payload, rest) = rest.split_first_chunk::<8>()?;
        let (index_crc, rest) = rest.split_first_chunk::<4>()?;
        let check = rest.first_chunk::<4>()?;
        (head_crc(nonce, position, &bytes[..20]) == u32::from_le_bytes(*check)).then(|| Head {
            index: u64::from_le_bytes(*index),
            payload: u64::from_le_bytes(*payload),
            index_crc: u32::from_le_bytes(*index_crc),
        })
    }

    /// The bytes of the whole frame.
    pub fn length(self) -> u64 {
        (HEAD as u64).saturating_add(self.index).saturating_add(self.payload)
    }

    /// Whether this is the index.
    pub fn is_index(self, index: &[u8]) -> bool {
        index.len() as u64 == self.index && crc32c::crc32c(index) == self.index_crc
    }
}

/// A part of a payload without the checksum behind it, if that is right.
pub(super) fn checked(mut part: Bytes) -> Option<Bytes> {
    let crc = part.split_off(part.len().checked_sub(CHECK)?);
    (crc32c::crc32c(&part).to_le_bytes() == crc[..]).then_some(part)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::view::View;
    use super::super::{CollectionId, ItemId, ItemRef, SplitMark};
    use super::*;
    use crate::error::{ErrorKind, Result};
    use crate::message::{Offset, SplitId};
    use crate::sink::Insert;

    fn bytes() -> impl Strategy<Value = Bytes> {
        let long = (LARGE - 2..LARGE + 2).prop_map(|length| vec![7; length]);
        prop_oneof![prop::collection::vec(any::<u8>(), 0..20), long].prop_map(Bytes::from)
    }

    prop_compose! {
        fn mark()(source: u32, split: u64, offset: u64, time: u64, timed: Option<bool>) -> SplitMark {
            SplitMark { source, split: SplitId::from_bits(split), offset: Offset(offset), time, timed }
        }
    }

    prop_compose! {
        fn update()(id: u128, diff in prop_oneof![any::<i64>(), -2i64..3], bytes in bytes(), cut in 0usize..5) -> ItemUpdate {
            let bytes = if diff >= 0 { bytes } else { Bytes::new() };
            let at = bytes.len() * cut / 4;
            let rest = (at < bytes.len()).then(|| Box::new(bytes.slice(at..)));
            ItemUpdate { id: ItemId(id), diff, bytes: bytes.slice(..at), rest }
        }
    }

    prop_compose! {
        fn prepared()(
            bytes in prop::collection::vec(any::<u8>(), 0..20),
            mut inserts in prop::collection::vec((0usize..20, any::<usize>(), any::<u64>(), any::<u128>(), 0usize..9), 0..4),
        ) -> Prepared {
            inserts.sort();
            let inserts = inserts.into_iter().map(|(at, length, collection, id, shared)| {
                let item = ItemRef { collection: CollectionId(collection), id: ItemId(id) };
                let what = match shared {
                    0..4 => Inserted::Item { item, length },
                    _ => Inserted::Bytes(Bytes::from(vec![7; shared])),
                };
                Insert { at: at.min(bytes.len()), what }
            });
            Prepared { inserts: inserts.collect(), bytes }
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
            prepared in prop::collection::vec(prepared(), 0..3),
        ) -> Frame {
            let changes = changes.into_iter().map(|(collection, updates)| Changes { collection, updates }).collect();
            Frame { lower, upper, clock, published, splits, changes, prepared }
        }
    }

    fn path() -> Arc<Path> {
        Arc::from(Path::new("segment"))
    }

    /// A frame as it comes back: nothing is shared in it.
    fn whole(mut frame: Frame) -> Frame {
        for update in frame.changes.iter_mut().flat_map(|changes| &mut changes.updates) {
            let rest = update.rest.take().unwrap_or_default();
            update.bytes = [std::mem::take(&mut update.bytes), *rest].concat().into();
        }
        frame.changes.iter_mut().for_each(|changes| changes.updates.sort_by_key(is_large));
        for prepared in &mut frame.prepared {
            let bytes = prepared.pieces().flatten().copied().collect();
            let mut shared = 0;
            prepared.inserts.retain_mut(|insert| {
                insert.at += shared;
                shared += if let Inserted::Bytes(bytes) = &insert.what { bytes.len() } else { 0 };
                matches!(insert.what, Inserted::Item { .. })
            });
            prepared.bytes = bytes;
        }
        frame
    }

    fn encoded(frame: &Frame, slot: usize, nonce: u64, position: u64) -> Vec<u8> {
        let (mut encoder, mut out) = (Encoder::default(), vec![]);
        let mut write = |bytes: &[u8]| {
            out.extend_from_slice(bytes);
            Ok(())
        };
        let length = encoder.encode(frame, Slot(slot), (nonce, position), &mut write).unwrap();
        assert_eq!(length, out.len() as u64);
        out
    }

    #[test]
    fn a_frame_of_many_blocks_comes_back() {
        let update = |id: u8| ItemUpdate { id: ItemId(id.into()), diff: 1, bytes: vec![id; 99_991].into(), rest: None };
        let updates: Vec<_> = (0..99).map(update).collect();
        let changes = |updates: &[_]| Changes { collection: "some".to_owned(), updates: updates.to_vec() };
        let frame = Frame { changes: vec![changes(&updates)], ..Frame::default() };
        let out = encoded(&frame, 1, 2, 3);
        let pieces = Frame { changes: updates.chunks(7).map(changes).collect(), ..Frame::default() };
        assert!(encoded(&pieces, 1, 2, 3) == out, "it does not depend on the pieces");
        let head = Head::read(&out, 2, 3).unwrap();
        assert!(is_whole(&out, 2, 3));
        assert_eq!(read(head, &Bytes::from(out).slice(HEAD..)).unwrap(), (Slot(1), frame));
    }

    /// The frame in these bytes, which begin behind its head.
    fn read(head: Head, bytes: &Bytes) -> Result<(Slot, Frame)> {
        let (index, payload) = (bytes.slice(..head.index as usize), bytes.slice(head.index as usize..));
        let view = View::read(head, &index, Some(payload), &path(), 5)?;
        Ok((view.slot, view.frame()?))
    }

    /// Whether this is a whole frame, with every checksum.
    fn is_whole(out: &[u8], nonce: u64, position: u64) -> bool {
        let Some(head) = Head::read(out, nonce, position).filter(|head| head.length() == out.len() as u64) else {
            return false;
        };
        let (index, payload) = out[HEAD..].split_at(head.index as usize);
        let (index, payload) = (Bytes::copy_from_slice(index), Bytes::copy_from_slice(payload));
        head.is_index(&index) && View::read(head, &index, Some(payload), &path(), 5).is_ok_and(|view| view.is_whole())
    }

    proptest! {
        #[test]
        fn a_frame_comes_back(frame in frame(), slot in 0usize..9, nonce: u64, position: u64) {
            let out = encoded(&frame, slot, nonce, position);
            let head = Head::read(&out, nonce, position).unwrap();
            prop_assert!(is_whole(&out, nonce, position));
            prop_assert!(Head::read(&out, nonce, position ^ 1).is_none() && Head::read(&out, nonce ^ 1, position).is_none());
            prop_assert_eq!(read(head, &Bytes::from(out).slice(HEAD..)).unwrap(), (Slot(slot), whole(frame)));
        }

        #[test]
        fn a_bit_that_is_wrong_is_noticed(frame in frame(), at: usize, bit in 0u32..8) {
            let mut out = encoded(&frame, 1, 2, 3);
            let at = at % out.len();
            out[at] ^= 1 << bit;
            prop_assert!(!is_whole(&out, 2, 3));
        }

        #[test]
        fn any_index_is_one_or_an_error(frame in frame(), junk in prop::collection::vec(any::<u8>(), 0..40), at: usize, cut: usize) {
            let mut out = encoded(&frame, 0, 0, 0);
            let head = Head::read(&out, 0, 0).unwrap();
            let payload = Bytes::from(out.split_off(HEAD + head.index as usize));
            let mut index = out.split_off(HEAD);
            let at = at % index.len();
            for (byte, junk) in index[at..].iter_mut().zip(&junk) {
                *byte = *junk;
            }
            index.truncate(cut % (index.len() + 1));
            for index in [Bytes::from(index), Bytes::from(junk)] {
                match View::read(head, &index, Some(payload.clone()), &path(), 5).and_then(|view| view.frame()) {
                    Ok(_) => {}
                    Err(error) => {
                        prop_assert_eq!(error.kind(), ErrorKind::Store);
                        let text = error.to_string();
                        prop_assert!(text.contains("byte 5") && text.contains("\"segment\""), "{}", text);
                    }
                }
            }
        }
    }
}
