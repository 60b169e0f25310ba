//! Devices: the commands that were sent to them, and the readings with which they answer. Times are RFC 3339 texts, half
//! of the devices write theirs two hours east of Greenwich; a key is a text and a number.

use std::fmt::Write as _;

use super::line::Line;
use super::options::Options;
use super::random::{Random, mix};
use super::shape::{Answer, Record, Shape, Topic, Writer};

pub(super) struct Telemetry;

impl Shape for Telemetry {
    fn name(&self) -> &'static str {
        "telemetry"
    }

    fn about(&self) -> &'static str {
        "commands to devices and the readings they answer with: times are RFC 3339 texts"
    }

    fn topics(&self) -> &'static [Topic] {
        &[
            Topic {
                name: "telemetry.commands",
                keys: &["command.deviceId", "command.request"],
                timestamp: "at",
                version: "seq",
            },
            Topic { name: "telemetry.readings", keys: &["device.id", "request"], timestamp: "at", version: "seq" },
        ]
    }

    fn answers(&self) -> &'static [Answer] {
        &[Answer { folder: "expected", topics: &[0, 1] }]
    }

    fn payload(&self) -> usize {
        80
    }

    fn has_ambiguous_keys(&self) -> bool {
        false
    }

    fn writer(&self, options: &Options) -> Box<dyn Writer> {
        Box::new(Devices { sample_bytes: options.payload, device: String::new(), samples: String::new() })
    }
}

/// So many devices.
const DEVICES: u64 = 250;
const ACTIONS: [&str; 3] = ["sample", "calibrate", "report"];

struct Devices {
    sample_bytes: usize,
    device: String,
    samples: String,
}

impl Writer for Devices {
    fn write(&mut self, record: &Record, line: &mut Line<'_>) {
        let number = record.key % DEVICES;
        let request = record.key / DEVICES + 1;
        self.device.clear();
        // Writing to a String cannot fail.
        let _ = write!(self.device, "dev-{number:05}");
        let east = number % 2 * 2;
        line.number("seq", record.version);
        if record.topic == 0 {
            line.open("command");
            line.key_text("deviceId", &self.device);
            line.key_number("request", request);
            line.text("action", ACTIONS[(record.hash % 3) as usize]);
            line.close();
            line.time_text("at", record.time, 0);
        } else {
            line.time_text("at", record.time, east);
            line.open("device");
            line.key_text("id", &self.device);
            line.number("site", number % 17);
            line.close();
            line.key_number("request", request);
            let mut random = Random::new(mix(record.hash ^ record.version));
            self.samples.clear();
            while self.samples.len() < self.sample_bytes {
                let comma = if self.samples.is_empty() { "" } else { "," };
                let _ = write!(self.samples, "{comma}{}.{}e-1", random.below(400), random.below(10));
            }
            line.array("celsius", &self.samples);
        }
    }
}
