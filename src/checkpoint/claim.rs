//! Claims: which run may write.

use std::hash::{BuildHasher, RandomState};
use std::io;

use serde::{Deserialize, Serialize};

use super::disk::{Advice, DiskFile};
use super::frame::MEND;
use super::manifest::{self, fenced, hex};
use super::place::{Place, failed, numbered};
use super::{Claim, HolderInfo, still};
use crate::crash;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::RunNumber;

/// What the file of a claim says.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    /// As hexadecimal digits.
    nonce: String,
    process: u32,
    host: String,
}

/// A number that nobody else has.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Claims the next run. The second part is the lock by which others see that it lives.
pub(super) fn claim(place: &Place, take_over: bool) -> Result<(Claim, Box<dyn DiskFile>)> {
    place.create()?;
    loop {
        let newest = place.numbers(&place.claims())?.pop();
        if let Some(run) = newest
            && !take_over
        {
            refuse_if_held(place, run)?;
        }
        let known = manifest::newest(place)?.map(|manifest| manifest.run.0);
        let run = newest.max(known).unwrap_or_default() + 1;
        let claim = Claim { run: RunNumber(run), nonce: u128::from(random()) << 64 | u128::from(random()) };
        let path = place.claims().join(numbered(run));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let holder = Holder { nonce: hex(claim.nonce), process: std::process::id(), host };
        let text = serde_json::to_string(&holder).expect("names are strings");
        if !place.create_new(&path, text.as_bytes())? {
            continue; // Somebody else was faster: is it still there?
        }
        crash::point("checkpoint.claim_created");
        let lock = place.disk.open_append(&path, Advice::Normal).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let text = format!("another process starts on folder {:?} at the same time", place.folder);
                Error::new(ErrorKind::Fenced, text)
            }
            _ => failed("be locked", &path, error),
        })?;
        place.sync(&place.claims())?;
        check(place, claim)?;
        crash::point("checkpoint.claimed");
        return Ok((claim, lock.0));
    }
}

fn refuse_if_held(place: &Place, run: u64) -> Result<()> {
    let path = place.claims().join(numbered(run));
    match place.disk.open_append(&path, Advice::Normal) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(failed("be locked", &path, error)),
    }
    let holder = match place.read(&path)?.as_deref().map(serde_json::from_slice::<Holder>) {
        Some(Ok(holder)) => format!("process {} on host {:?}", holder.process, holder.host),
        _ => "a process that has not said its name".to_owned(),
    };
    let text = format!(
        "folder {:?} is held by run {run}, {holder}, which is alive: stop it, or take the folder from it with --take_over",
        place.folder
    );
    Err(Error::new(ErrorKind::Fenced, text))
}

/// Who has made the claim of a run, if it is there and says so.
pub(super) fn holder(place: &Place, run: RunNumber) -> Result<Option<HolderInfo>> {
    let path = place.claims().join(numbered(run.0));
    let holder = place.read(&path)?.and_then(|bytes| serde_json::from_slice::<Holder>(&bytes).ok());
    Ok(holder.map(|Holder { process, host, .. }| {
        let alive = still::is_alive(&path, process, &host);
        HolderInfo { process, host, alive }
    }))
}

/// Whether the claim of a run is there, as these processes know it.
pub(super) fn is_there(place: &Place, claim: Claim) -> Result<bool> {
    let holder = place.read(&place.claims().join(numbered(claim.run.0)))?;
    let holder = holder.and_then(|bytes| serde_json::from_slice::<Holder>(&bytes).ok());
    Ok(holder.is_some_and(|holder| holder.nonce == hex(claim.nonce)))
}

/// Whether the run may still write.
///
/// # Errors
///
/// [`ErrorKind::Fenced`] if not.
pub(super) fn check(place: &Place, claim: Claim) -> Result<()> {
    if let Some(newest) = place.numbers(&place.claims())?.pop()
        && newest > claim.run.0
    {
        return Err(fenced(place, claim.run, RunNumber(newest)));
    }
    if !is_there(place, claim)? {
        let text = format!("the claim of run {} is gone from folder {:?}: {MEND}", claim.run.0, place.folder);
        return Err(Error::new(ErrorKind::Fenced, text));
    }
    Ok(())
}

/// Removes the claims of earlier runs.
pub(super) fn tidy(place: &Place, claim: Claim) -> Result<()> {
    for run in place.numbers(&place.claims())?.into_iter().filter(|run| *run < claim.run.0) {
        place.remove(&place.claims().join(numbered(run)));
    }
    Ok(())
}
