//! Frames as they are read: the index is parsed as far as somebody asks, and the payload stays where it is until then.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::frame::{CHECK, HEAD, Head, MEND, checked};
use super::place::{Place, failed};
use super::{ItemId, SplitMark};
use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::item::{CollectionId, ItemRef};
use crate::message::{Offset, SplitId};
use crate::sink::Slot;
use crate::varint;

/// A frame as it was read, its payload apart.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub slot: Slot,
    pub lower: Epoch,
    pub upper: Epoch,
    pub clock: u64,
    pub published: Epoch,
    pub splits: Vec<SplitMark>,
    pub sections: Vec<Section>,
    outbox: Bytes,
    head: Head,
    /// The payload, if it was read with the index.
    payload: Option<Bytes>,
    /// Where the frame stands.
    path: Arc<Path>,
    position: u64,
}

/// A part of the updates of a collection.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub collection: Arc<str>,
    /// How many updates are negative.
    pub negative: u64,
    updates: Bytes,
    /// Where the items stand in the payload; the checksum follows.
    items: Range<u64>,
}

/// An update of state, without the bytes of its item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Update {
    pub id: ItemId,
    pub diff: i64,
    /// Where the item stands among those of its section. Empty if there is none: `diff` is negative.
    pub bytes: Range<usize>,
}

/// What a writer prepared, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    /// Where its bytes stand among those of all writers.
    pub bytes: Range<usize>,
    pub items: Vec<ItemInsert>,
}

/// An item in what a writer prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemInsert {
    /// Before which of the bytes it comes.
    pub at: usize,
    /// How many of its last bytes.
    pub length: usize,
    pub item: ItemRef,
}

/// Bytes that are parsed from their front.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn number(&mut self) -> Option<u64> {
        let (number, length) = varint::get(self.0)?;
        self.0 = &self.0[length..];
        Some(number)
    }
    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let (bytes, rest) = self.size().and_then(|length| self.0.split_at_checked(length))?;
        self.0 = rest;
        Some(bytes)
    }
    fn id(&mut self) -> Option<ItemId> {
        self.array().map(u128::from_le_bytes).map(ItemId)
    }
    fn mark(&mut self) -> Option<SplitMark> {
        Some(SplitMark {
            source: u32::try_from(self.number()?).ok()?,
            split: SplitId::from_bits(self.array().map(u64::from_le_bytes)?),
            offset: Offset(self.number()?),
            time: self.number()?,
            timed: match self.array()? {
                [2] => None,
                [flag @ 0..=1] => Some(flag == 1),
                _ => return None,
            },
        })
    }
    /// A section whose items begin at `start` in a payload.
    fn section(&mut self, index: &Bytes, start: u64) -> Option<Section> {
        let collection = std::str::from_utf8(self.bytes()?).ok()?.into();
        let [_updates, negative, items] = [self.number()?, self.number()?, self.number()?];
        let updates = index.slice_ref(self.bytes()?);
        Some(Section { collection, negative, updates, items: start..start.checked_add(items)? })
    }
    /// An update whose item begins at `at`, which moves on to the next one.
    fn update(&mut self, at: &mut usize) -> Option<Update> {
        let id = self.id()?;
        let zigzag = self.number()?;
        let diff = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let length = if diff >= 0 { self.size()? } else { 0 };
        let bytes = *at..at.checked_add(length)?;
        *at = bytes.end;
        Some(Update { id, diff, bytes })
    }
    fn insert(&mut self) -> Option<ItemInsert> {
        let (at, length) = (self.size()?, self.size()?);
        let collection = CollectionId(self.array().map(u64::from_le_bytes)?);
        Some(ItemInsert { at, length, item: ItemRef { collection, id: self.id()? } })
    }
}

impl View {
    /// Parses an index, whose frame stands in a file at this position. The payload may be read with it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if it is none, though its CRC is right.
    pub fn read(head: Head, index: &Bytes, payload: Option<Bytes>, path: &Arc<Path>, position: u64) -> Result<View> {
        View::parse(head, index, payload, path, position).ok_or_else(|| damaged(path, position))
    }

    fn parse(head: Head, index: &Bytes, payload: Option<Bytes>, path: &Arc<Path>, position: u64) -> Option<View> {
        let mut rest = Rest(index);
        let slot = Slot(rest.size()?);
        let [lower, upper, clock, published] = [rest.number()?, rest.number()?, rest.number()?, rest.number()?];
        let mut splits = vec![];
        for _ in 0..rest.number()? {
            splits.push(rest.mark()?);
        }
        let (mut sections, mut end) = (vec![], 0u64);
        for _ in 0..rest.number()? {
            let section = rest.section(index, end)?;
            end = section.items.end.checked_add(CHECK as u64)?;
            sections.push(section);
        }
        if end.checked_add(CHECK as u64)? > head.payload {
            return None;
        }
        let (outbox, path) = (index.slice_ref(rest.0), Arc::clone(path));
        Some(View { slot, lower, upper, clock, published, splits, sections, outbox, head, payload, path, position })
    }

    /// Gives every update of a section.
    ///
    /// # Errors
    ///
    /// Those of `update`; [`ErrorKind::Store`] if the updates do not parse.
    pub fn updates(&self, section: &Section, update: &mut dyn FnMut(Update) -> Result<()>) -> Result<()> {
        let (mut rest, mut at) = (Rest(&section.updates), 0);
        let end = section.items.end - section.items.start;
        while !rest.0.is_empty() {
            let next = rest.update(&mut at).filter(|_| at as u64 <= end);
            update(next.ok_or_else(|| self.damaged())?)?;
        }
        if at as u64 == end { Ok(()) } else { Err(self.damaged()) }
    }

    /// The items of a section, which its updates name. Reads them, if that was not done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if they are not there or not what was written.
    pub fn items(&self, place: &Place, section: &Section) -> Result<Bytes> {
        self.part(place, &section.items)
    }

    /// What the writers prepared, in their order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if the index does not parse.
    pub fn outbox(&self) -> Result<Vec<Outgoing>> {
        self.parse_outbox().ok_or_else(|| self.damaged())
    }

    fn parse_outbox(&self) -> Option<Vec<Outgoing>> {
        let (mut rest, mut at, mut outbox) = (Rest(&self.outbox), 0usize, vec![]);
        while !rest.0.is_empty() {
            let bytes = at..at.checked_add(rest.size()?)?;
            at = bytes.end;
            let mut items: Vec<ItemInsert> = vec![];
            for _ in 0..rest.number()? {
                let insert = rest.insert()?;
                let in_order = items.last().is_none_or(|last| last.at <= insert.at) && insert.at <= bytes.len();
                in_order.then(|| items.push(insert))?;
            }
            outbox.push(Outgoing { bytes, items });
        }
        let prepared = self.prepared();
        (at as u64 == prepared.end - prepared.start).then_some(outbox)
    }

    /// The bytes of what the writers prepared. Reads them, if that was not done.
    ///
    /// # Errors
    ///
    /// As [`items`](Self::items).
    pub fn outgoing(&self, place: &Place) -> Result<Bytes> {
        self.part(place, &self.prepared())
    }

    /// Where what was prepared stands in the payload.
    fn prepared(&self) -> Range<u64> {
        let start = self.sections.last().map_or(0, |section| section.items.end + CHECK as u64);
        start..self.head.payload - CHECK as u64
    }

    fn part(&self, place: &Place, range: &Range<u64>) -> Result<Bytes> {
        let View { path, position, head, .. } = self;
        let part = match self.part_here(range) {
            Some(part) => part,
            None => {
                let start = position + HEAD as u64 + head.index + range.start;
                let read = place.disk.read_at(path, start, range.end - range.start + CHECK as u64, place.advice);
                read.map_err(|error| unread(path, error))?
            }
        };
        let whole = part.len() as u64 == range.end - range.start + CHECK as u64;
        checked(part).filter(|_| whole).ok_or_else(|| {
            let text = format!("{path:?} is damaged at byte {position}: {WRONG_CHECKSUM}");
            Error::new(ErrorKind::Store, format!("{text}; {MEND}"))
        })
    }

    fn part_here(&self, range: &Range<u64>) -> Option<Bytes> {
        let payload = self.payload.as_ref()?;
        Some(payload.slice(range.start as usize..range.end as usize + CHECK))
    }

    /// Whether the payload was read and has all its checksums.
    pub fn is_whole(&self) -> bool {
        let parts = self.sections.iter().map(|section| section.items.clone()).chain([self.prepared()]);
        let here = self.payload.as_ref().is_some_and(|payload| payload.len() as u64 == self.head.payload);
        here && parts.map(|range| self.part_here(&range)).all(|part| part.and_then(checked).is_some())
    }

    fn damaged(&self) -> Error {
        damaged(&self.path, self.position)
    }

    /// The whole frame, if it was read with its payload.
    #[cfg(test)]
    pub fn frame(&self) -> Result<super::Frame> {
        use super::{Advice, Changes, ItemUpdate};
        let place = Place { disk: Arc::new(super::LocalDisk), folder: "nowhere".into(), advice: Advice::Normal };
        let mut changes: Vec<Changes> = vec![];
        for section in &self.sections {
            let items = self.items(&place, section)?;
            if changes.last().is_none_or(|last| *last.collection != *section.collection) {
                changes.push(Changes { collection: section.collection.to_string(), updates: vec![] });
            }
            self.updates(section, &mut |Update { id, diff, bytes }| {
                let update = ItemUpdate { id, diff, bytes: items.slice(bytes), rest: None };
                changes.last_mut().unwrap().updates.push(update);
                Ok(())
            })?;
        }
        let outgoing = self.outgoing(&place)?;
        let prepared = self.outbox()?.into_iter().map(|Outgoing { bytes, items }| {
            let inserts = items.into_iter().map(|ItemInsert { at, length, item }| {
                let what = crate::sink::Inserted::Item { item, length };
                crate::sink::Insert { at, what }
            });
            crate::sink::Prepared { bytes: outgoing[bytes].to_vec(), inserts: inserts.collect() }
        });
        Ok(super::Frame {
            lower: self.lower,
            upper: self.upper,
            clock: self.clock,
            published: self.published,
            splits: self.splits.clone(),
            changes,
            prepared: prepared.collect(),
        })
    }
}

/// What is wrong with a frame that is whole.
pub(super) const WRONG_CHECKSUM: &str = "the checksum of this frame is not that of its bytes";

/// The error of a segment that cannot be read.
pub(super) fn unread(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            let text = format!("{path:?} is missing though the newest manifest lists it; {MEND}");
            Error::new(ErrorKind::Store, text)
        }
        _ => failed("be read", path, error),
    }
}

fn damaged(path: &Path, position: u64) -> Error {
    let text =
        format!("the frame at byte {position} of {path:?} has its checksum but does not parse: a fault of its writer");
    Error::new(ErrorKind::Store, format!("{text}; {MEND}"))
}
