//! What travels between workers: timely's exchange codec (bincode of the serde form) against abomonation.
//!
//! `cargo bench --bench codec --features abomonation`; without the feature only timely's codec is measured. `-- --smoke` checks
//! that records come back.
//!
//! Why abomonation is not used, although timely used it up to 0.12 and it should be faster: it writes the memory of a value
//! as it is, padding and all, and casts it back in place. That is undefined behaviour by design (RUSTSEC-2021-0120: it reads
//! uninitialized padding, makes unaligned references, and trusts the bytes of a socket to be valid values), so bytes from a
//! peer can do anything to a process. It is also no longer maintained. The standard library's checks of unsafe preconditions
//! stop it in builds with debug assertions, so here it runs in release builds only.

#[path = "support/mod.rs"]
mod support;

use std::hint::black_box;

use bytes::Bytes;
use support::{machine, measure, median, short};
use syncline::message::{Offset, SplitId};
use syncline::sync::{Key, KeyBuilder, KeyTypes, Record};
use timely::bytes::arc::BytesMut;
use timely::dataflow::channels::ContainerBytes;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: syncline::allocator::MiMalloc = syncline::allocator::MiMalloc;

/// Records of a message, as timely sends them.
const MESSAGE: usize = 128;
const ROUNDS: usize = 7;
const PAYLOAD: usize = 580;

fn key(builder: &mut KeyBuilder, number: usize) -> Key {
    builder.text(&format!("org.example.g{}", number % 5003)).text(&format!("artifact-{number}")).text("1.2.3").build()
}

fn records() -> Vec<Record<Bytes>> {
    let mut builder = KeyBuilder::new(KeyTypes::Typed);
    let record = |number: usize| Record {
        key: key(&mut builder, number),
        side: (number % 2) as u8,
        split: SplitId::numbered("one", 0),
        offset: Offset(number as u64),
        timestamp: 1_600_000_000_000,
        base: 1_600_000_000_000,
        payload: Bytes::from(vec![number as u8; PAYLOAD]),
    };
    (0..MESSAGE).map(record).collect()
}

fn encode(records: &Vec<Record<Bytes>>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(records.length_in_bytes());
    records.into_bytes(&mut bytes);
    bytes
}

fn decode(bytes: Vec<u8>) -> Vec<Record<Bytes>> {
    ContainerBytes::from_bytes(BytesMut::from(bytes).freeze())
}

/// Times a way there and back; records per CPU-second.
fn rate(messages: usize, mut there_and_back: impl FnMut()) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let ((), usage) = measure(|| (0..messages).for_each(|_| there_and_back()));
        usage.per_cpu_second((messages * MESSAGE) as u64)
    });
    median(&rounds.collect::<Vec<_>>())
}

fn main() {
    #[cfg(feature = "mimalloc")]
    syncline::allocator::tune(); // as the binary does
    let smoke = std::env::args().any(|arg| arg == "--smoke");
    println!("codec: {}", machine());
    let records = records();
    assert_eq!(decode(encode(&records)), records, "records do not come back");
    let messages = if smoke { 1 } else { 2_000 };
    let size = encode(&records).len() / MESSAGE;
    let bincode = rate(messages, || drop(black_box(decode(encode(black_box(&records))))));
    println!("bincode, timely's: {} records/CPU-s there and back, {size} bytes each", short(bincode));
    #[cfg(all(feature = "abomonation", not(debug_assertions)))]
    unsound::compare(&records, messages, bincode);
    #[cfg(all(feature = "abomonation", debug_assertions))]
    println!("abomonation: not with assertions; run `cargo bench --bench codec --features abomonation`");
    #[cfg(not(feature = "abomonation"))]
    println!("abomonation: not in this build; run `cargo bench --bench codec --features abomonation`");
}

#[cfg(all(feature = "abomonation", not(debug_assertions)))]
#[allow(unsafe_code)] // that it needs it is what is shown here
mod unsound {
    #![allow(deprecated)] // the derive crate would be one dependency more for the same code

    use abomonation::Abomonation;

    use super::*;

    /// The same record with buffers of its own: shared ones cannot be cast back.
    #[derive(Clone, PartialEq, Debug)]
    struct Flat {
        hash: [u64; 2],
        key: Vec<u8>,
        side: u8,
        split: u64,
        offset: u64,
        timestamp: u64,
        base: u64,
        payload: Vec<u8>,
    }
    abomonation::unsafe_abomonate!(Flat: key, payload);

    impl From<&Record<Bytes>> for Flat {
        fn from(record: &Record<Bytes>) -> Self {
            let hash = record.key.hash().0;
            Flat {
                hash: [hash as u64, (hash >> 64) as u64],
                key: record.key.bytes().to_vec(),
                side: record.side,
                split: u64::from(record.split.number()),
                offset: record.offset.0,
                timestamp: record.timestamp,
                base: record.base,
                payload: record.payload.to_vec(),
            }
        }
    }

    pub(super) fn compare(records: &[Record<Bytes>], messages: usize, bincode: f64) {
        let flat: Vec<Flat> = records.iter().map(Flat::from).collect();
        let mut bytes = Vec::new();
        // Both of these are undefined behaviour as the header says; they happen to work with today's compilers.
        let there = |bytes: &mut Vec<u8>| {
            bytes.clear();
            // SAFETY: none is claimed.
            unsafe { abomonation::encode(&flat, bytes) }.expect("memory takes everything");
        };
        let in_place = rate(messages, || {
            there(&mut bytes);
            // SAFETY: none is claimed.
            let back = unsafe { abomonation::decode::<Vec<Flat>>(&mut bytes) };
            black_box(back.map(|(records, _)| records.len()).expect("the bytes were just written"));
        });
        let owned = rate(messages, || {
            there(&mut bytes);
            // SAFETY: none is claimed.
            let back = unsafe { abomonation::decode::<Vec<Flat>>(&mut bytes) };
            black_box(back.map(|(records, _)| records.clone()).expect("the bytes were just written"));
        });
        there(&mut bytes);
        println!(
            "abomonation: {} records/CPU-s there and back in place, {} with a copy to own ({:.1} and {:.1} times bincode), {} \
             bytes each",
            short(in_place),
            short(owned),
            in_place / bincode,
            owned / bincode,
            bytes.len() / MESSAGE
        );
    }
}
