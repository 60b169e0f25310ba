//! Where a job starts and ends, and what it commits under.

use std::collections::BTreeMap;
use std::time::Duration;

use super::config::Input;
use super::sync::Reader;
use super::{brokers, units};
use crate::broker;
use crate::message::Offset;
use crate::reader::Until;
use crate::source::{Discovery, OnLost, Otherwise, Position};

impl Reader<'_> {
    /// The name to commit under: that of FASTEN's job, from the topics' own names where a side is one topic.
    pub(super) fn group(&mut self, inputs: &[Input]) -> String {
        let part =
            |input: &Input| broker::topic_name(&input.broker, &input.topic).unwrap_or_else(|| input.name.clone());
        let usual = format!("fasten.{}.{}.sync", part(&inputs[0]), part(&inputs[1]));
        self.text("group").unwrap_or(usual)
    }

    /// Where to start.
    pub(super) fn start(&mut self, inputs: &[Input]) -> Position {
        let start = self.read("start", |text| {
            let choices = [
                ("committed", Position::COMMITTED),
                ("committed-or-latest", Position::Committed { otherwise: Otherwise::Latest }),
                ("earliest", Position::Earliest),
                ("latest", Position::Latest),
            ];
            if let Some((_, position)) = choices.into_iter().find(|(name, _)| *name == text) {
                return Ok(position);
            }
            if text.contains('=') {
                return exact(text).map(Position::Exact);
            }
            units::moment(text).map(Position::Timestamp).map_err(|fix| {
                format!("write committed, committed-or-latest, earliest, latest, TOPIC[0]=OFFSET,.. or {fix}")
            })
        });
        if let Some(Position::Exact(offsets)) = &start {
            for split in offsets.keys() {
                let owners =
                    inputs.iter().filter(|input| broker::has_split(&input.broker, &input.topic, split)).count();
                if owners != 1 && inputs.iter().all(|input| !input.topic.is_empty()) {
                    let fix = match owners {
                        0 => "name a split of an input: TOPIC[PARTITION] in Kafka, the file's name in a folder",
                        _ => "both inputs may have a split of that name: start them with a time, or in two jobs",
                    };
                    self.problem(format!("--start names \"{split}\""), fix);
                }
            }
        }
        start.unwrap_or(Position::COMMITTED)
    }

    /// How often new splits are looked for.
    pub(super) fn discovery(&mut self, until: Until) -> Discovery {
        let discovery = self.read("discovery", |text| match text {
            "off" => Ok(Discovery::Off),
            text => match units::duration(text)? {
                Duration::ZERO => Err("write off, or a duration above 0".to_owned()),
                every => Ok(Discovery::Every(every)),
            },
        });
        if until != Until::Never && matches!(discovery, Some(Discovery::Every(_))) {
            let fix = "leave one of them out: a job that ends reads the splits that are there when it starts";
            self.problem("--discovery with --until", fix);
        }
        discovery.unwrap_or_default()
    }

    /// When to end.
    pub(super) fn until(&mut self) -> Until {
        let until = self.read("until", |text| match text {
            "never" => Ok(Until::Never),
            "end" => Ok(Until::End),
            _ => units::moment(text).map(Until::Timestamp).map_err(|fix| format!("write never or end, or {fix}")),
        });
        until.unwrap_or(Until::Never)
    }

    /// What happens where messages at a position are gone.
    pub(super) fn on_lost_offset(&mut self, inputs: &[Input]) -> OnLost {
        let lost = [("fail", OnLost::Fail), ("earliest", OnLost::Earliest), ("latest", OnLost::Latest)];
        let on_lost_offset = self.choice("on_lost_offset", &lost);
        if on_lost_offset != OnLost::Fail && !inputs.iter().any(|input| brokers::is_kafka(&input.broker)) {
            self.problem(
                "--on_lost_offset without an input in Kafka",
                "leave it out: other brokers keep their messages",
            );
        }
        on_lost_offset
    }
}

/// Offsets by the names of splits: `TOPIC[0]=123,TOPIC[1]=7`.
fn exact(text: &str) -> Result<BTreeMap<String, Offset>, String> {
    let mut offsets = BTreeMap::new();
    for part in text.split(',') {
        let form = || format!("\"{part}\" is not SPLIT=OFFSET: write TOPIC[0]=123,TOPIC[1]=7");
        let (split, offset) = part.rsplit_once('=').ok_or_else(form)?;
        let offset = offset.parse().ok().filter(|offset| *offset <= i64::MAX as u64).ok_or_else(form)?;
        if split.is_empty() || offsets.insert(split.to_owned(), Offset(offset)).is_some() {
            return Err(format!("\"{split}\" stands there twice, or is empty: give each split one offset"));
        }
    }
    Ok(offsets)
}
