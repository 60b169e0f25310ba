//! `syncline state ls`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::names::Names;
use super::unwritten;
use crate::checkpoint::{Identity, Inspection, Restored, SegmentInfo};
use crate::cli::progress::Grouped;
use crate::cli::units::utc;
use crate::epoch::Epoch;
use crate::error::Result;

/// Says what is in a folder.
pub(super) fn ls(inspection: Inspection, out: &mut dyn Write) -> Result<()> {
    let restored = inspection.restored()?;
    let mut segments = vec![];
    for segment in &inspection.segments {
        segments.push((segment, inspection.lower(segment)?));
    }
    let mut collections: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    inspection.items(&mut |name, bytes| {
        let (items, sum) = match collections.get_mut(name) {
            Some(known) => known,
            None => collections.entry(name.to_owned()).or_default(),
        };
        (*items, *sum) = (*items + 1, *sum + bytes.len() as u64);
        Ok(())
    })?;
    let written = (|| {
        head(&inspection, &restored, out)?;
        splits(&inspection.identity, &restored, out)?;
        writeln!(out, "segments")?;
        for (segment, lower) in segments {
            writeln!(out, "  {}", line(segment, lower))?;
        }
        for file in &inspection.unlisted {
            writeln!(out, "  {file}  in no manifest: just made, or removed at the next start")?;
        }
        for torn in &inspection.torn {
            writeln!(out, "  torn: {torn}: the next start cuts it off")?;
        }
        writeln!(out, "collections")?;
        for (name, (items, bytes)) in &collections {
            writeln!(out, "  {name}  {} items, {} bytes", Grouped(*items), Grouped(*bytes))?;
        }
        outbox(&restored, out)
    })();
    written.map_err(unwritten)
}

fn head(inspection: &Inspection, restored: &Restored, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "job      {}", inspection.identity.job)?;
    writeln!(out, "settings")?;
    let width = inspection.identity.settings.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    for (name, value) in &inspection.identity.settings {
        writeln!(out, "  {name:<width$}  {value}")?;
    }
    writeln!(out, "run      {}", inspection.run.0)?;
    let newest = inspection.claims.last().filter(|claim| **claim != inspection.run);
    let of = newest.map_or(String::new(), |claim| format!(", for run {} that has not begun", claim.0));
    match &inspection.holder {
        Some(holder) => {
            let alive = match holder.alive {
                Some(true) => "alive",
                Some(false) => "not alive",
                None => "not known from here whether it is alive",
            };
            writeln!(out, "holder   process {} on host {}, {alive}{of}", holder.process, holder.host)?;
        }
        None => writeln!(out, "holder   not known: there is no claim that names it")?,
    }
    writeln!(out, "workers  {}, at most {} in a run", inspection.num_slots, inspection.slots_ever)?;
    let upper = inspection.upper();
    writeln!(out, "upper    {upper} ({})", utc(upper))?;
    match restored.clock {
        0 => writeln!(out, "clock    -"),
        clock => writeln!(out, "clock    {clock} ({})", utc(clock)),
    }
}

fn splits(identity: &Identity, restored: &Restored, out: &mut dyn Write) -> io::Result<()> {
    let names = Names::new(identity);
    writeln!(out, "splits")?;
    for mark in &restored.splits {
        let side = mark.source as usize;
        let time = match (mark.timed, mark.time) {
            (_, 0) => "time -".to_owned(),
            (Some(false), time) => format!("time {} (nothing that was read said one)", utc(time)),
            (_, time) => format!("time {}", utc(time)),
        };
        let split = names.split(side, mark.split);
        writeln!(out, "  {split}  side {}, next offset {}, {time}", names.side(side), mark.offset)?;
    }
    Ok(())
}

fn line(segment: &SegmentInfo, lower: Option<Epoch>) -> String {
    let what = match segment.slot {
        Some(slot) => format!("log of worker {} in run {}", slot.0, segment.run.0),
        None => format!("base of run {}", segment.run.0),
    };
    let open = if segment.open { ", open" } else { "" };
    let range = match (lower, segment.upper) {
        (Some(lower), Some(upper)) => format!("[{lower}, {upper})"),
        _ => "nothing that counts".to_owned(),
    };
    format!("{}  {what}{open}, {} bytes, {range}", segment.file, Grouped(segment.bytes))
}

/// What is published again at the next start, or was already: that is not known.
fn outbox(restored: &Restored, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "outbox   {} entries not known to be published", restored.outbox.len())?;
    for pending in &restored.outbox {
        let bytes: usize = pending.prepared.iter().map(bytes::Bytes::len).sum();
        let range = format!("[{}, {})", pending.lower, pending.upper);
        writeln!(out, "  worker {}, {range}, {} bytes", pending.slot.0, Grouped(bytes as u64))?;
    }
    Ok(())
}
