//! Reading files that are objects: which parts a file has, and a cache of what was read, because logs are read in small pieces.
//!
//! Parts never change, so what is known of one stays true until the file is removed. The head is asked for anew whenever it is read:
//! it is what says that a file is still there.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStore, ObjectStoreExt};

use super::{AT_ONCE, ObjectDisk, failed, part, parts_of, read_whole};

/// How much is kept of what was read, in bytes.
const KEPT: usize = 16 << 20;

/// What a block takes beside its bytes.
const ENTRY: usize = 200;

/// So many blocks are read before they are put together.
const GROUP: usize = 64;

/// What is known of the files of a store.
#[derive(Default)]
pub(super) struct Files {
    /// Those with parts: claims and manifests have none, and come and go.
    known: HashMap<PathBuf, File>,
    next_id: u64,
    blocks: HashMap<Block, Bytes>,
    /// The blocks in the order in which they came.
    order: VecDeque<Block>,
    bytes: usize,
}

/// What is known of a file.
#[derive(Clone)]
struct File {
    /// Tells it from a file of the same name.
    id: u64,
    head: Bytes,
    /// Where its parts begin and end.
    parts: Arc<Vec<Range<u64>>>,
    /// Parts were looked for.
    searched: bool,
}

impl File {
    fn head_len(&self) -> u64 {
        self.head.len() as u64
    }

    fn end(&self) -> u64 {
        self.parts.last().map_or(self.head_len(), |part| part.end)
    }
}

/// A piece of a part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Block {
    file: u64,
    /// Where the part begins in the file.
    part: u64,
    /// Where the piece stands in the part.
    range: Range<u64>,
}

impl Files {
    fn keep(&mut self, block: Block, bytes: Bytes) {
        self.bytes += bytes.len() + ENTRY;
        if self.blocks.insert(block.clone(), bytes).is_some_and(|old| {
            self.bytes -= old.len() + ENTRY;
            true
        }) {
            return; // two have read it at the same time
        }
        self.order.push_back(block);
        while self.bytes > KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.blocks.remove(&oldest).map_or(0, |bytes| bytes.len() + ENTRY);
        }
    }

    fn forget(&mut self, path: &Path) {
        let Some(file) = self.known.remove(path) else { return };
        let Files { blocks, order, bytes, .. } = self;
        order.retain(|block| {
            let stays = block.file != file.id;
            if !stays {
                *bytes -= blocks.remove(block).map_or(0, |bytes| bytes.len() + ENTRY);
            }
            stays
        });
    }
}

impl ObjectDisk {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a file that is gone.
    pub(super) fn forget(&self, path: &Path) {
        self.files().forget(path);
    }

    /// How long a file is.
    pub(super) fn read_len(&self, path: &Path) -> io::Result<u64> {
        let file = self.read_head(path)?;
        Ok(self.find_parts(path, file)?.end())
    }

    /// Reads what there is of a range.
    pub(super) fn read_range(&self, path: &Path, range: Range<u64>) -> io::Result<Vec<u8>> {
        let known = self.files().known.get(path).cloned();
        let mut file = match known {
            Some(file) if range.start >= file.head_len() => file,
            _ => self.read_head(path)?,
        };
        let within = |position: u64| position.min(file.head_len()) as usize;
        let mut bytes = file.head[within(range.start)..within(range.end.max(range.start))].to_vec();
        let unknown = if self.still { !file.searched } else { range.end > file.end() };
        if unknown {
            file = self.find_parts(path, file)?;
        }
        let blocks = blocks(&file, &range, self.remote.sizes.block);
        for group in blocks.chunks(GROUP) {
            let read = self.read_blocks(path, group)?;
            for ((block, wanted), read) in group.iter().zip(read) {
                let skipped = block.part + block.range.start;
                bytes.extend_from_slice(&read[(wanted.start - skipped) as usize..(wanted.end - skipped) as usize]);
            }
        }
        Ok(bytes)
    }

    /// Reads the head of a file; gives what is known of the file.
    fn read_head(&self, path: &Path) -> io::Result<File> {
        let (store, key) = (Arc::clone(&self.remote.store), self.remote.key(path)?);
        let read = self.remote.wait(async move { read_whole(&*store, &key).await.map_err(failed) });
        if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.forget(path);
        }
        let head = read?;
        let mut files = self.files();
        if let Some(file) = files.known.get(path).filter(|file| file.head == head) {
            return Ok(file.clone());
        }
        files.forget(path);
        files.next_id += 1;
        Ok(File { id: files.next_id, head, parts: Arc::default(), searched: false })
    }

    /// Looks for parts behind those that are known.
    fn find_parts(&self, path: &Path, mut file: File) -> io::Result<File> {
        let (store, parts) = (Arc::clone(&self.remote.store), parts_of(&self.remote.key(path)?));
        let (end, still) = (file.end(), self.still);
        let mut found =
            self.remote.wait(async move { find_parts(&*store, &parts, end, still).await.map_err(failed) })?;
        found.sort_unstable_by_key(|part| part.start);
        for part in found {
            let end = file.end();
            if part.start == end && !part.is_empty() {
                Arc::make_mut(&mut file.parts).push(part);
            } else if part.start > end {
                let next = part.start;
                tracing::warn!(file = ?path, byte = end, next, "a part is missing: the file ends here, what comes later does not count");
                break;
            }
        }
        file.searched = true;
        let mut files = self.files();
        let newer = files.known.get(path).is_none_or(|known| known.id == file.id && known.end() <= file.end());
        if newer && (self.still || !file.parts.is_empty()) {
            files.known.insert(path.to_owned(), file.clone());
        }
        Ok(file)
    }

    /// Reads pieces of parts, those that are not at hand from the store.
    fn read_blocks(&self, path: &Path, blocks: &[(Block, Range<u64>)]) -> io::Result<Vec<Bytes>> {
        let mut read: Vec<Option<Bytes>> = {
            let files = self.files();
            blocks.iter().map(|(block, _)| files.blocks.get(block).cloned()).collect()
        };
        let missing: Vec<(usize, Block)> =
            (0..blocks.len()).filter(|at| read[*at].is_none()).map(|at| (at, blocks[at].0.clone())).collect();
        if !missing.is_empty() {
            let (store, parts) = (Arc::clone(&self.remote.store), parts_of(&self.remote.key(path)?));
            let got = self.remote.wait(async move {
                let get = missing.into_iter().map(|(at, block)| {
                    let (store, key) = (Arc::clone(&store), part(&parts, block.part));
                    async move {
                        let bytes = store.get_range(&key, block.range.clone()).await.map_err(failed)?;
                        if bytes.len() as u64 != block.range.end - block.range.start {
                            let text = format!("object \"{key}\" is shorter than it was: somebody has replaced it");
                            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                        }
                        Ok((at, block, bytes))
                    }
                });
                stream::iter(get).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await
            });
            if got.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                self.forget(path); // it was removed meanwhile
            }
            let mut files = self.files();
            for (at, block, bytes) in got? {
                files.keep(block, bytes.clone());
                read[at] = Some(bytes);
            }
        }
        Ok(read.into_iter().flatten().collect())
    }
}

/// The pieces of parts in which a range of a file is, each with what is wanted of it, in places of the file.
fn blocks(file: &File, range: &Range<u64>, size: u64) -> Vec<(Block, Range<u64>)> {
    let mut blocks = vec![];
    let first = file.parts.partition_point(|part| part.end <= range.start);
    for part in file.parts[first..].iter().take_while(|part| part.start < range.end) {
        let mut at = range.start.max(part.start);
        while at < range.end.min(part.end) {
            let start = (at - part.start) / size * size;
            let end = (start + size).min(part.end - part.start);
            let wanted = at..range.end.min(part.start + end);
            at = wanted.end;
            blocks.push((Block { file: file.id, part: part.start, range: start..end }, wanted));
        }
    }
    blocks
}

/// The parts that begin at a byte or later. Most files have no more than are known: to ask for the next one by its name costs less
/// than a list. But a list also names parts behind a gap.
async fn find_parts(
    store: &dyn ObjectStore,
    parts: &Key,
    from: u64,
    list: bool,
) -> object_store::Result<Vec<Range<u64>>> {
    let next = part(parts, from);
    let mut found = vec![];
    let mut listed = if list {
        store.list(Some(parts))
    } else {
        match store.head(&next).await {
            Err(Error::NotFound { .. }) => return Ok(found),
            head => found.push(from..from + head?.size),
        }
        store.list_with_offset(Some(parts), &next)
    };
    while let Some(object) = listed.try_next().await? {
        let start = object.location.filename().and_then(|name| name.parse::<u64>().ok());
        // Not every store keeps to the offset.
        if let Some(start) = start.filter(|start| *start > from || list) {
            found.push(start..start + object.size);
        }
    }
    Ok(found)
}
