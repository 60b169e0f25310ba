//! The `sync` operator on typed records of three sides: which orders are ordered, paid and sent.
//!
//!     cargo run --release --example typed_sync -- datasets/orders out [-w WORKERS] [-n PROCESSES -p PROCESS] [-h HOSTS]
//!
//! Writes `out/complete-wN.jsonl`, together `examples/expected/complete.jsonl` in another order, and in `out/open-wN.jsonl` what
//! was missing when a minute of event time had passed.

use std::time::Duration;

use serde_json::{Value as Document, json};
use syncline::broker::{self, BrokerOptions};
use syncline::codec::Json;
use syncline::dataflow::Input;
use syncline::reader::{OnBad, Until};
use syncline::split_time::TimeMode;
use syncline::sync::{Key, Options, Output, Record, Value, synchronize};
use syncline::timely::dataflow::operators::Concat;
use syncline::timely::dataflow::operators::vec::{Map, Partition};
use syncline::{Job, OutputRecord, Result};

/// One record of any side, as far as we care. It is read from JSON alone: its parts travel between workers, it does not.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Event {
    seq: u64,
    timestamp: u64,
    #[serde(rename = "orderId", alias = "parcel", deserialize_with = "order")]
    order: String,
}

/// The number of the order stands in the record, or one level deeper.
fn order<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<String, D::Error> {
    let document = <Document as serde::Deserialize>::deserialize(deserializer)?;
    let order = document.as_str().or_else(|| document.get("orderId")?.as_str());
    order.map(str::to_owned).ok_or_else(|| serde::de::Error::missing_field("orderId"))
}

const SIDES: [&str; 3] = ["orders", "payments", "shipments"];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let mut inputs = vec![];
    for side in SIDES {
        let source = broker::source(&format!("file:{}", args[1]), side, &BrokerOptions::default())?;
        let codec = Json::codec_with_timestamp(|event: &Event| Some(event.timestamp));
        inputs.push(Input::new(side, source, codec).until(Until::End).on_bad(OnBad::Skip));
    }
    let output = broker::sink(&format!("file:{}", args[2]), &BrokerOptions::default())?;
    let (max_disorder, idle_after) = (Duration::from_secs(5), Duration::from_secs(60));
    let job = Job::new("typed sync").time_mode(TimeMode::Event { max_disorder, idle_after });
    job.run_from_args(args.into_iter().skip(3), move |flow| {
        let mut sides = vec![];
        for (side, input) in inputs.iter().enumerate() {
            let mut keys = Key::builder();
            sides.push(flow.read(input)?.map(move |arrived| {
                keys.text(&arrived.data.order);
                Record::new(keys.build(), side as u8, arrived.map(|event| Value(event.seq)))
            }));
        }
        let records = sides.into_iter().reduce(|all, side| all.concat(side)).expect("there are three");
        let synchronized = synchronize(records, flow.clock(), &Options::new(SIDES.len(), Duration::from_secs(60)));
        flow.watch(synchronized.gauges);
        flow.hold_commits(synchronized.waiting);
        let [complete, open] = synchronized
            .outputs
            .partition(2, |output| match output {
                Output::Joined { key, .. } => (0, json!({"order": key.to_string()})),
                Output::Delayed { key, records } => {
                    let missing =
                        SIDES.iter().zip(records).filter(|(_, record)| record.is_none()).map(|(side, _)| side);
                    (1, json!({"order": key.to_string(), "missing": missing.collect::<Vec<_>>()}))
                }
            })
            .try_into()
            .unwrap_or_else(|_| unreachable!("two parts were asked for"));
        let [complete, open] = [complete, open].map(|part| part.map(|line| OutputRecord::from(line.to_string())));
        flow.write(&output, vec![("complete".into(), complete), ("open".into(), open)])
    })
}
