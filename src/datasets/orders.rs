//! A shop: what was ordered, what was paid, what was sent. Three topics with one key field.

use std::fmt::Write as _;

use super::line::Line;
use super::options::Options;
use super::random::{Random, mix};
use super::shape::{Answer, Record, Shape, Topic, Writer};

pub(super) struct Orders;

impl Shape for Orders {
    fn name(&self) -> &'static str {
        "orders"
    }

    fn about(&self) -> &'static str {
        "orders, payments and shipments of a shop: three sides, one key field"
    }

    fn topics(&self) -> &'static [Topic] {
        &[
            Topic { name: "orders", keys: &["orderId"], timestamp: "timestamp", version: "seq" },
            Topic { name: "payments", keys: &["orderId"], timestamp: "timestamp", version: "seq" },
            Topic { name: "shipments", keys: &["parcel.orderId"], timestamp: "timestamp", version: "seq" },
        ]
    }

    fn answers(&self) -> &'static [Answer] {
        &[
            Answer { folder: "expected", topics: &[0, 1, 2] },
            Answer { folder: "expected-orders-payments", topics: &[0, 1] },
        ]
    }

    fn payload(&self) -> usize {
        120
    }

    fn has_ambiguous_keys(&self) -> bool {
        false
    }

    fn writer(&self, options: &Options) -> Box<dyn Writer> {
        Box::new(Shop { item_bytes: options.payload, text: String::new(), items: String::new() })
    }
}

/// As they stand between the quotes of a JSON string.
const GOODS: [&str; 8] = ["lamp", "chair", "Stuhl", "кофе", "th\\u00e9i\\u00e8re", r#"desk \"L\""#, "お茶", "shelf"];
const CARRIERS: [&str; 4] = ["north", "harbour", "pigeon", "rail"];

struct Shop {
    item_bytes: usize,
    text: String,
    items: String,
}

impl Shop {
    fn cents(record: &Record) -> u64 {
        100 + record.hash % 100_000
    }

    fn items(&mut self, record: &Record) -> &str {
        let mut random = Random::new(mix(record.hash ^ record.version));
        self.items.clear();
        while self.items.len() < self.item_bytes {
            let comma = if self.items.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(self.items, "{comma}{{\"sku\":{},\"name\":\"", random.below(10_000));
            self.items.push_str(random.pick(&GOODS));
            let _ = write!(self.items, "\",\"count\":{}}}", 1 + random.below(9));
        }
        &self.items
    }
}

impl Writer for Shop {
    fn write(&mut self, record: &Record, line: &mut Line<'_>) {
        self.text.clear();
        let _ = write!(self.text, "ORD-{:08}", record.key);
        line.number("seq", record.version);
        match record.topic {
            0 => {
                line.key_text("orderId", &self.text);
                line.time_number("timestamp", record.time);
                line.number("customer", record.hash >> 8 & 0xffff);
                line.number("cents", Shop::cents(record));
                line.array("items", self.items(record));
            }
            1 => {
                line.time_number("timestamp", record.time);
                line.key_text("orderId", &self.text);
                line.number("cents", Shop::cents(record));
                line.text("method", if record.hash & 1 == 0 { "card" } else { "transfer" });
                line.text("reference", &format!("{:016X}", mix(record.hash)));
            }
            _ => {
                line.open("parcel");
                line.text("carrier", CARRIERS[(record.hash & 3) as usize]);
                line.key_text("orderId", &self.text);
                line.number("grams", 50 + record.hash % 20_000);
                line.close();
                line.time_number("timestamp", record.time);
            }
        }
    }
}
