//! A file that is appended to, as objects.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;

use super::{Remote, create, part};
use crate::checkpoint::disk::DiskFile;

/// How many parts are sent at a time. When there are as many, they are sent before they are synced, so that they do not fill the memory.
const SENT_AT_ONCE: usize = 4;

pub(super) struct ObjectFile {
    remote: Arc<Remote>,
    parts: Key,
    /// What is to be sent, each with its place. It stays as it is until all of it is known to be there: then a part that is found
    /// there is ours if it has these bytes.
    pending: VecDeque<(u64, Bytes)>,
    /// Where `buffer` begins in the file.
    start: u64,
    buffer: BytesMut,
}

impl ObjectFile {
    pub fn new(remote: Arc<Remote>, parts: Key, len: u64) -> Self {
        ObjectFile { remote, parts, pending: VecDeque::new(), start: len, buffer: BytesMut::new() }
    }

    fn send(&mut self) -> io::Result<()> {
        let mut rest = self.buffer.split().freeze();
        while !rest.is_empty() {
            let bytes = rest.split_to(rest.len().min(self.remote.sizes.part));
            let start = self.start;
            self.start += bytes.len() as u64;
            self.pending.push_back((start, bytes));
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let (store, parts, pending) = (Arc::clone(&self.remote.store), self.parts.clone(), self.pending.clone());
        self.remote.wait(async move {
            let sent = pending.into_iter().map(|(start, bytes)| {
                let (store, key) = (Arc::clone(&store), part(&parts, start));
                async move { create(&*store, &key, &bytes).await.map_err(|error| taken(&key, error)) }
            });
            stream::iter(sent).buffer_unordered(SENT_AT_ONCE).try_collect::<()>().await
        })?;
        self.pending.clear();
        Ok(())
    }
}

/// Only one may append to a file.
fn taken(key: &Key, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let text = format!("somebody else has appended to it: object \"{key}\" has other bytes");
            io::Error::new(io::ErrorKind::InvalidData, text)
        }
        _ => error,
    }
}

impl DiskFile for ObjectFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= SENT_AT_ONCE * self.remote.sizes.part { self.send() } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.send()
    }

    fn truncate(&mut self, _len: u64) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a file in an object store cannot be made shorter"))
    }
}
