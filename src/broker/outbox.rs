//! Records as bytes, for sinks that give them to the checkpoint in `prepare` and publish them in a later run.
//!
//! A record is its epoch (u64), its entity (u32), its timestamp, its key, its value, the number of its headers (u32) and these.
//! Numbers are little-endian; bytes and names come after their length (u32); what may be absent comes after 0 or 1 (u8). Parts of
//! values that checkpoints have anyway are left to be inserted.

use bytes::{Buf, Bytes};

use crate::epoch::Epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Entity, OutputRecord, Prepared, Stored};

/// Appends a record.
pub(super) fn put(prepared: &mut Prepared, epoch: Epoch, entity: Entity, record: &OutputRecord) -> Result<()> {
    prepared.bytes.extend_from_slice(&epoch.to_le_bytes());
    put_length(prepared, entity.0)?;
    prepared.bytes.push(u8::from(record.timestamp.is_some()));
    prepared.bytes.extend(record.timestamp.into_iter().flat_map(u64::to_le_bytes));
    put_optional(prepared, record.key.as_ref())?;
    put_length(prepared, record.value.len())?;
    let mut from = 0;
    for &Stored { at, length, item } in &record.stored {
        if at < from || at.checked_add(length).is_none_or(|end| end > record.value.len()) {
            let text = format!(
                "a record says that {length} bytes of its value from {at} on are stored, but they are not there"
            );
            return Err(Error::new(ErrorKind::Write, text));
        }
        if length > 0 {
            prepared.push_part(&record.value, from..at);
            prepared.push_item(item, length);
            from = at + length;
        }
    }
    prepared.push_part(&record.value, from..record.value.len());
    put_length(prepared, record.headers.len())?;
    for (name, value) in &record.headers {
        put_length(prepared, name.len())?;
        prepared.bytes.extend_from_slice(name.as_bytes());
        put_optional(prepared, value.as_ref())?;
    }
    Ok(())
}

fn put_length(prepared: &mut Prepared, length: usize) -> Result<()> {
    let too_long =
        |_| Error::new(ErrorKind::Limit, format!("{length} bytes are too many for one record: at most 4 GiB"));
    prepared.bytes.extend_from_slice(&u32::try_from(length).map_err(too_long)?.to_le_bytes());
    Ok(())
}

fn put_bytes(prepared: &mut Prepared, bytes: &Bytes) -> Result<()> {
    put_length(prepared, bytes.len())?;
    prepared.push(bytes);
    Ok(())
}

fn put_optional(prepared: &mut Prepared, bytes: Option<&Bytes>) -> Result<()> {
    prepared.bytes.push(u8::from(bytes.is_some()));
    bytes.map_or(Ok(()), |bytes| put_bytes(prepared, bytes))
}

/// The records of a range that was left by an earlier run.
///
/// # Errors
///
/// [`ErrorKind::Write`] if nothing was left: nobody has prepared the range. As [`records`].
pub(super) fn left(left: Option<&[u8]>, lower: Epoch, upper: Epoch) -> Result<Vec<(Epoch, Entity, OutputRecord)>> {
    let none =
        || Error::new(ErrorKind::Write, format!("the range [{lower}, {upper}) is published and was never prepared"));
    records(left.ok_or_else(none)?)
}

/// The records in these bytes, in the order in which they were put.
///
/// # Errors
///
/// [`ErrorKind::Store`] if the bytes are not what [`put`] made.
fn records(bytes: &[u8]) -> Result<Vec<(Epoch, Entity, OutputRecord)>> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut records = vec![];
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let record = take(&mut rest);
        records.push(record.ok_or_else(|| {
            Error::new(ErrorKind::Store, format!("the prepared records are damaged at byte {at} of {}", bytes.len()))
        })?);
    }
    Ok(records)
}

fn take(rest: &mut Bytes) -> Option<(Epoch, Entity, OutputRecord)> {
    let epoch = rest.try_get_u64_le().ok()?;
    let entity = Entity(rest.try_get_u32_le().ok()? as usize);
    let timestamp = if take_flag(rest)? { Some(rest.try_get_u64_le().ok()?) } else { None };
    let key = take_optional(rest)?;
    let value = take_bytes(rest)?;
    let mut headers = vec![];
    for _ in 0..rest.try_get_u32_le().ok()? {
        let name = String::from_utf8(take_bytes(rest)?.to_vec()).ok()?;
        headers.push((name, take_optional(rest)?));
    }
    Some((epoch, entity, OutputRecord { key, value, timestamp, headers, stored: vec![] }))
}

fn take_flag(rest: &mut Bytes) -> Option<bool> {
    match rest.try_get_u8().ok()? {
        flag @ 0..=1 => Some(flag == 1),
        _ => None,
    }
}

fn take_bytes(rest: &mut Bytes) -> Option<Bytes> {
    let length = rest.try_get_u32_le().ok()? as usize;
    (length <= rest.len()).then(|| rest.split_to(length))
}

fn take_optional(rest: &mut Bytes) -> Option<Option<Bytes>> {
    if take_flag(rest)? { take_bytes(rest).map(Some) } else { Some(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
    }

    prop_compose! {
        fn record()(
            key in prop::option::of(bytes()),
            value in bytes(),
            timestamp in prop::option::of(any::<u64>()),
            headers in prop::collection::vec(("[a-zä]{0,3}", prop::option::of(bytes())), 0..3),
        ) -> OutputRecord {
            OutputRecord { key, value, timestamp, headers, stored: vec![] }
        }
    }

    proptest! {
        #[test]
        fn what_was_put_is_taken(list in prop::collection::vec((any::<u64>(), 0usize..5, record()), 0..5), cut in any::<usize>()) {
            let list: Vec<_> = list.into_iter().map(|(epoch, entity, record)| (epoch, Entity(entity), record)).collect();
            let mut prepared = Prepared::default();
            let mut ends = vec![0];
            for (epoch, entity, record) in &list {
                put(&mut prepared, *epoch, *entity, record).unwrap();
                ends.push(prepared.bytes.len());
            }
            let out = prepared.bytes;
            prop_assert_eq!(&records(&out).unwrap(), &list);
            let cut = cut % (out.len() + 1);
            match records(&out[..cut]) {
                Ok(_) => prop_assert!(ends.contains(&cut)),
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Store),
            }
        }
    }
}
