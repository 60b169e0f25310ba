//! Memory for many small pieces of bytes: they share blocks, and a block is used again when nobody holds a piece of it.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Blocks that are remembered beyond the open one, in bytes. As much may be in flight between threads; what is more goes back to
/// the allocator, which clears and maps it anew each time.
const MOST_USED: usize = 32 << 20;

/// Buffers of one size, one of which is open. Pieces are split off it, and may go to other threads.
///
/// The way through the allocator costs more than it seems: a block that one thread takes and another gives back goes to the system
/// and comes back page by page (a tenth of the CPU of a job on Kafka).
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Bytes of a block. Smaller: more of them; larger: more is held by one piece that is kept.
    size: usize,
    open: BytesMut,
    /// The open block is of that size, so it can be used again.
    regular: bool,
    /// Blocks that were full, oldest first, without their pieces.
    used: VecDeque<BytesMut>,
}

impl Blocks {
    /// No block yet; each will have so many bytes.
    pub(crate) fn new(size: usize) -> Self {
        Blocks { size, open: BytesMut::new(), regular: false, used: VecDeque::new() }
    }

    /// What was put into the open block since the last piece was split off, with room for so much more without an allocation.
    pub(crate) fn room(&mut self, more: usize) -> &mut BytesMut {
        if self.open.capacity() - self.open.len() < more {
            self.next(more);
        }
        &mut self.open
    }

    /// Forgets what was put into the open block since the last piece.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// The piece that was put into the open block.
    pub(crate) fn split(&mut self) -> Bytes {
        self.open.split().freeze()
    }

    /// A copy. What is larger than an eighth of a block has memory of its own: no block is left half empty for it.
    #[cfg_attr(not(feature = "kafka"), allow(dead_code))] // files are read into the block itself
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.len() > self.size / 8 {
            return Bytes::copy_from_slice(bytes);
        }
        self.room(bytes.len()).extend_from_slice(bytes);
        self.split()
    }

    /// Opens a block with the unfinished piece in it, and room for more.
    fn next(&mut self, more: usize) {
        let needed = self.open.len() + more;
        let regular = needed <= self.size;
        // A piece that is kept holds its block, and those behind it are free all the same.
        let free = self.used.iter_mut().position(|block| regular && block.try_reclaim(self.size));
        let mut block = match free.and_then(|free| self.used.remove(free)) {
            Some(block) => block,
            None => BytesMut::with_capacity(needed.max(self.size)),
        };
        block.extend_from_slice(&self.open);
        self.open.clear();
        let full = std::mem::replace(&mut self.open, block);
        let was_regular = std::mem::replace(&mut self.regular, regular);
        if was_regular && self.used.len() * self.size < MOST_USED {
            self.used.push_back(full);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_when_its_pieces_are_gone_and_not_before() {
        let mut blocks = Blocks::new(1024);
        let mut pieces: Vec<Bytes> = (0..64u8).map(|n| blocks.copy(&[n; 100])).collect();
        let places = |pieces: &[Bytes]| pieces.iter().map(|piece| piece.as_ptr() as usize).collect::<Vec<_>>();
        let first = places(&pieces);
        assert!(pieces.iter().zip(0..).all(|(piece, n)| piece[..] == [n; 100]));
        pieces.truncate(32); // the second half is free
        let again: Vec<Bytes> = (0..40u8).map(|n| blocks.copy(&[n; 100])).collect();
        assert!(pieces.iter().zip(0..).all(|(piece, n)| piece[..] == [n; 100]), "a piece that is held was overwritten");
        assert!(again.iter().zip(0..).all(|(piece, n)| piece[..] == [n; 100]));
        let reused = places(&again).into_iter().filter(|place| first[32..].contains(place)).count();
        assert!(reused >= 16, "only {reused} pieces are where others were");
    }

    #[test]
    fn an_unfinished_piece_moves_to_the_next_block() {
        let mut blocks = Blocks::new(64);
        let mut pieces = vec![];
        for n in 0..20u8 {
            for part in 0..5 {
                blocks.room(7).extend_from_slice(&[n, part, n, part, n, part, n]);
            }
            pieces.push(blocks.split());
        }
        for (piece, n) in pieces.iter().zip(0..) {
            assert_eq!(piece.len(), 35);
            assert!(piece.chunks(7).zip(0..).all(|(part, at)| part == [n, at, n, at, n, at, n]));
        }
        assert!(blocks.copy(&[1; 1000]).iter().all(|byte| *byte == 1));
        blocks.room(500).extend_from_slice(&[2; 500]);
        assert_eq!(blocks.split()[..], [2; 500]);
    }
}
