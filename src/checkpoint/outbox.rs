//! What was prepared and perhaps not published, with the items that it refers to.

use std::collections::HashMap;

use bytes::Bytes;

use super::Pending;
use super::log;
use super::manifest::Segment;
use super::place::Place;
use super::view::{Outgoing, View};
use crate::error::{Error, ErrorKind, Result};
use crate::item::{CollectionId, ItemRef};

/// The items that something refers to, as far as they were found.
type Found = HashMap<ItemRef, Option<Bytes>>;

/// Puts together what the writers of these frames prepared. The segments are all that count: items are in any of them.
///
/// # Errors
///
/// [`ErrorKind::Store`] if an item is in none of them: it is not the state that the frames were written for.
pub(super) fn resolve(place: &Place, segments: &[Segment], job: u64, frames: &[View]) -> Result<Vec<Pending>> {
    let mut outboxes = vec![];
    let mut found = Found::new();
    for view in frames {
        let outbox = view.outbox()?;
        found.extend(outbox.iter().flat_map(|outgoing| &outgoing.items).map(|insert| (insert.item, None)));
        outboxes.push(outbox);
    }
    if !found.is_empty() {
        log::for_each(place, segments, job, &mut |view| find(place, &view, &mut found))?;
    }
    let mut pending = vec![];
    for (view, outbox) in frames.iter().zip(outboxes) {
        if outbox.iter().all(|outgoing| outgoing.bytes.is_empty() && outgoing.items.is_empty()) {
            continue;
        }
        let bytes = view.outgoing(place)?;
        let prepared = outbox.into_iter().map(|outgoing| put_together(&outgoing, &bytes, &found));
        let prepared = prepared.collect::<Result<_>>()?;
        pending.push(Pending { slot: view.slot, lower: view.lower, upper: view.upper, prepared });
    }
    Ok(pending)
}

/// Takes the items that are looked for out of a frame.
fn find(place: &Place, view: &View, found: &mut Found) -> Result<()> {
    for section in &view.sections {
        let collection = CollectionId::of(&section.collection);
        let mut here = vec![];
        view.updates(section, &mut |update| {
            let item = ItemRef { collection, id: update.id };
            if update.diff >= 0 && found.get(&item).is_some_and(Option::is_none) {
                here.push((item, update.bytes));
            }
            Ok(())
        })?;
        if !here.is_empty() {
            let items = view.items(place, section)?;
            found.extend(here.into_iter().map(|(item, bytes)| (item, Some(Bytes::copy_from_slice(&items[bytes])))));
        }
    }
    Ok(())
}

fn put_together(outgoing: &Outgoing, bytes: &Bytes, found: &Found) -> Result<Bytes> {
    let own = bytes.slice(outgoing.bytes.clone());
    if outgoing.items.is_empty() {
        return Ok(Bytes::copy_from_slice(&own)); // a slice would hold those of all writers
    }
    let inserted: usize = outgoing.items.iter().map(|insert| insert.length).sum();
    let mut whole = Vec::with_capacity(own.len() + inserted);
    let mut from = 0;
    for insert in &outgoing.items {
        let item = found.get(&insert.item).and_then(Option::as_ref);
        let part = item.and_then(|item| item.get(item.len().checked_sub(insert.length)?..)).ok_or_else(|| {
            let id = insert.item.id.0;
            let text =
                format!("what is to be published refers to an item, {id:032x}, that no frame has: a fault of the job");
            Error::new(ErrorKind::Store, text)
        })?;
        whole.extend_from_slice(&own[from..insert.at]);
        whole.extend_from_slice(part);
        from = insert.at;
    }
    whole.extend_from_slice(&own[from..]);
    Ok(whole.into())
}
