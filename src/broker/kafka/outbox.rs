//! The records of a range as bytes: what a checkpoint keeps, so that a later run can publish them.
//!
//! Record: entity `u32`, timestamp `i64` (-1: none), key, value, number of headers `u32`, then name and value of each.
//! Key, value and header values: length `u32` (`u32::MAX`: none), bytes. All little-endian.

use bytes::{Buf, BufMut, Bytes};

use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Entity, OutputRecord};

const NONE: u32 = u32::MAX;

/// Appends a record.
pub(super) fn encode(entity: Entity, record: &OutputRecord, bytes: &mut Vec<u8>) -> Result<()> {
    bytes.put_u32_le(length(entity.0)?);
    bytes.put_i64_le(record.timestamp.and_then(|time| i64::try_from(time).ok()).unwrap_or(-1));
    put(record.key.as_deref(), bytes)?;
    put(Some(&record.value), bytes)?;
    bytes.put_u32_le(length(record.headers.len())?);
    for (name, value) in &record.headers {
        put(Some(name.as_bytes()), bytes)?;
        put(value.as_deref(), bytes)?;
    }
    Ok(())
}

/// All records, in their order.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<(Entity, OutputRecord)>> {
    let mut bytes = Bytes::copy_from_slice(bytes);
    let mut records = Vec::new();
    while bytes.has_remaining() {
        records.push(
            record(&mut bytes)
                .ok_or_else(|| Error::new(ErrorKind::Store, "outbox of the Kafka sink is cut short or damaged"))?,
        );
    }
    Ok(records)
}

fn record(bytes: &mut Bytes) -> Option<(Entity, OutputRecord)> {
    let entity = Entity(bytes.try_get_u32_le().ok()? as usize);
    let timestamp = u64::try_from(bytes.try_get_i64_le().ok()?).ok();
    let key = get(bytes)?;
    let value = get(bytes)??;
    let mut headers = Vec::new();
    for _ in 0..bytes.try_get_u32_le().ok()? {
        let name = String::from_utf8(get(bytes)??.to_vec()).ok()?;
        headers.push((name, get(bytes)?));
    }
    Some((entity, OutputRecord { key, value, timestamp, headers }))
}

fn length(len: usize) -> Result<u32> {
    let fits = u32::try_from(len).ok().filter(|len| *len != NONE);
    fits.ok_or_else(|| {
        Error::new(ErrorKind::Limit, format!("{len} bytes are more than a record of the Kafka sink may have"))
    })
}

fn put(part: Option<&[u8]>, bytes: &mut Vec<u8>) -> Result<()> {
    match part {
        None => bytes.put_u32_le(NONE),
        Some(part) => {
            bytes.put_u32_le(length(part.len())?);
            bytes.extend_from_slice(part);
        }
    }
    Ok(())
}

/// `None` if the bytes are too few, `Some(None)` for a part that is not there.
fn get(bytes: &mut Bytes) -> Option<Option<Bytes>> {
    let len = bytes.try_get_u32_le().ok()?;
    if len == NONE {
        return Some(None);
    }
    let len = len as usize;
    (bytes.remaining() >= len).then(|| Some(bytes.split_to(len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_damage_is_seen() {
        let whole = OutputRecord {
            key: Some(Bytes::from_static(b"k")),
            value: Bytes::from_static(b"{}"),
            timestamp: Some(7),
            headers: vec![("a".to_string(), None), ("b".to_string(), Some(Bytes::new()))],
        };
        let bare = OutputRecord { value: Bytes::from_static(b"v"), ..OutputRecord::default() };
        let mut bytes = Vec::new();
        encode(Entity(0), &whole, &mut bytes).unwrap();
        let first = bytes.len();
        encode(Entity(2), &bare, &mut bytes).unwrap();
        assert_eq!(decode(&bytes).unwrap(), [(Entity(0), whole), (Entity(2), bare)]);
        for cut in (1..bytes.len()).filter(|cut| *cut != first) {
            assert_eq!(decode(&bytes[..cut]).unwrap_err().kind(), ErrorKind::Store, "{cut}");
        }
    }
}
