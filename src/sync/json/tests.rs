//! What would break: accepting what is not JSON or refusing what is (on mutated documents too), joining records whose key fields are
//! missing or doubtful, losing digits, and a stack that overflows.

use proptest::prelude::*;

use super::*;

/// Fields as text, with a letter for their type.
#[derive(Debug, Default, PartialEq)]
struct Fields(Vec<String>);

impl KeySink for Fields {
    fn text(&mut self, text: &str) {
        self.0.push(format!("t:{text}"));
    }
    fn number(&mut self, number: &str) {
        self.0.push(format!("n:{number}"));
    }
    fn boolean(&mut self, boolean: bool) {
        self.0.push(format!("b:{boolean}"));
    }
}

fn extractor(keys: &str, timestamp: Option<&str>) -> Extractor {
    let timestamp = timestamp.map(|path| path.parse().expect("a path"));
    Extractor::new(&Path::list(keys).expect("paths"), timestamp.as_ref()).expect("an extractor")
}

fn fields(keys: &str, value: &str) -> Vec<String> {
    let mut fields = Fields::default();
    extractor(keys, None)
        .extract(value.as_bytes(), &mut fields)
        .unwrap_or_else(|refused| panic!("{value}: {refused:?}"));
    fields.0
}

fn refusal(keys: &str, value: impl AsRef<[u8]>) -> (Reason, String) {
    let mut fields = Fields::default();
    let refused = extractor(keys, None).extract(value.as_ref(), &mut fields).expect_err("a refusal");
    assert_eq!(fields, Fields::default(), "the sink got fields of a refused record");
    (refused.reason, refused.error)
}

fn reason(keys: &str, value: impl AsRef<[u8]>) -> Reason {
    refusal(keys, value).0
}

fn timestamp(value: &str) -> Result<Option<u64>, Refused> {
    extractor("k", Some("t")).extract(value.as_bytes(), &mut Fields::default())
}

#[test]
fn fields_come_in_the_order_of_the_key() {
    let value = r#" {"x":[{"y":null}], "b":{"d":true,"c":"two"}, "a":"one", "l":[0,{"m":1.50}]} "#;
    assert_eq!(fields("a,b.c,b.d,l.1.m,l.0", value), ["t:one", "t:two", "b:true", "n:1.50", "n:0"]);
    assert_eq!(fields("/b/d,/a,/a", value), ["b:true", "t:one", "t:one"]);
}

#[test]
fn t12_numbers_keep_every_digit() {
    let value = r#"{"a":12345678901234567890123,"b":1.0,"c":-0,"d":1e999999999}"#;
    assert_eq!(fields("a,b,c,d", value), ["n:12345678901234567890123", "n:1.0", "n:-0", "n:1e999999999"]);
}

#[test]
fn t10_strange_names_are_reached() {
    assert_eq!(fields(r"a\.b.c/d,/e~1f,/", r#"{"a.b":{"c/d":1},"e/f":2,"":3}"#), ["n:1", "n:2", "n:3"]);
    assert_eq!(fields("0.1", r#"{"0":{"1":"names, not indices"}}"#), ["t:names, not indices"]);
    assert_eq!(fields("a.01", r#"{"a":{"01":7}}"#), ["n:7"]);
    assert_eq!(reason("a.01", r#"{"a":[7,8]}"#), Reason::KeyMissing);
}

#[test]
fn escapes_are_decoded_where_they_matter() {
    assert_eq!(fields("k\u{e9}y", r#"{"k\u00e9y":"\u0041\n\ud83d\ude00\"","other":"\ud83d"}"#), ["t:A\n\u{1f600}\""]);
    assert_eq!(reason("k", r#"{"k":"\ud83d"}"#), Reason::InvalidJson);
    assert_eq!(reason("k", r#"{"k":"\ude00\ud83d"}"#), Reason::InvalidJson);
}

#[test]
fn t01_a_doubtful_key_never_joins() {
    for (value, expected) in [
        (r#"{}"#, Reason::KeyMissing),
        (r#"{"a":{}}"#, Reason::KeyMissing),
        (r#"{"a":{"c":1}}"#, Reason::KeyMissing),
        (r#"{"a":1}"#, Reason::KeyMissing),
        (r#"{"a":null}"#, Reason::KeyMissing),
        (r#"{"a":"b"}"#, Reason::KeyMissing),
        (r#"{"a":[{"b":1}]}"#, Reason::KeyMissing),
        (r#"{"a":{"b":null}}"#, Reason::KeyNull),
        (r#"{"a":{"b":{}}}"#, Reason::KeyNotScalar),
        (r#"{"a":{"b":[1]}}"#, Reason::KeyNotScalar),
        (r#"{"a":{"b":1,"b":1}}"#, Reason::KeyAmbiguous),
        (r#"{"a":{"b":1},"a":{"b":1}}"#, Reason::KeyAmbiguous),
        (r#"{"a":{"b":1},"a":null}"#, Reason::KeyAmbiguous),
        (r#"{"a":{"b":1,"\u0062":2}}"#, Reason::KeyAmbiguous),
        (r#"[{"a":{"b":1}}]"#, Reason::NotAnObject),
        (r#""a""#, Reason::NotAnObject),
        ("1e999", Reason::NotAnObject),
        ("null", Reason::NotAnObject),
        ("", Reason::InvalidJson),
        ("  ", Reason::InvalidJson),
        (r#"{"a":{"b":1}} x"#, Reason::InvalidJson),
        (r#"{"a":{"b":1}}{}"#, Reason::InvalidJson),
        (r#"{"a":{"b":1,"b":1}"#, Reason::InvalidJson),
        ("{\"a\":{\"b\":\"\n\"}}", Reason::InvalidJson),
        ("\u{feff}{\"a\":{\"b\":1}}", Reason::InvalidJson),
    ] {
        assert_eq!(reason("a.b", value), expected, "{value}");
    }
    let framed: [(&[u8], Reason); 7] = [
        (b"\0\0\0\0\x07{\"a\":{\"b\":1}}", Reason::SchemaFramed),
        (b"\0\xff\xff\xff\xff\x02\x80", Reason::SchemaFramed),
        (b"\0\0\0\0\x07", Reason::SchemaFramed),
        (b"\0\0\0\x07", Reason::InvalidJson),
        (b"\0\xff\xff\xff", Reason::InvalidUtf8),
        (b"\x01\0\0\0\x07{}", Reason::InvalidJson),
        (b" \0\0\0\0\x07{}", Reason::InvalidJson),
    ];
    for (value, expected) in framed {
        assert_eq!(reason("a.b", value), expected, "{value:?}");
    }
    let (_, error) = refusal("a.b", b"\0\xff\xff\xff\xff\x02");
    assert!(error.contains("schema id 4294967295") && error.contains("reads plain JSON"), "{error}");
    assert_eq!(reason("a.b", b"{\"a\":{\"b\":1},\"c\":\"\xff\"}"), Reason::InvalidUtf8);
    assert_eq!(reason("a.b", b"{\"a\":{\"b\":1},\"c\":\"\xed\xa0\xbd\"}"), Reason::InvalidUtf8, "a surrogate as bytes");
}

#[test]
fn scalars_that_serde_json_has_no_type_for_are_scalars_too() {
    for scalar in ["1e999", r#""\ud83d""#] {
        assert_eq!(
            fields("k,l.1,m.n", &format!(r#"{{"x":{scalar},"l":[{scalar},1],"m":{{"o":{scalar},"n":2}},"k":0}}"#)),
            ["n:0", "n:1", "n:2"]
        );
        assert_eq!(reason("a.b", format!(r#"{{"a":{scalar}}}"#)), Reason::KeyMissing, "{scalar}");
        assert_eq!(reason("a.0.b", format!(r#"{{"a":[{scalar},{{"b":1}}]}}"#)), Reason::KeyMissing, "{scalar}");
        assert_eq!(reason("a.b", format!(r#"{{"a":{scalar},"a":{{"b":1}}}}"#)), Reason::KeyAmbiguous, "{scalar}");
        assert_eq!(reason("a.b,c.d", format!(r#"{{"c":{scalar},"a":{{"b":null}}}}"#)), Reason::KeyNull, "{scalar}");
        let (reason, error) = refusal("a.b", format!(r#"{{"a":{scalar}, x}}"#));
        assert_eq!(reason, Reason::InvalidJson);
        assert!(error.contains("key must be a string"), "the first place that is not JSON: {error}");
    }
    assert_eq!(fields("k", r#"{"\ud83d":1,"k":2}"#), ["n:2"], "a name beside the path");
    assert_eq!(fields("a.k", r#"{"a":{"\ud83d":{"\ud83d":1},"k":2}}"#), ["n:2"], "a name beside the path");
}

#[test]
fn a_duplicate_beside_the_path_passes() {
    assert_eq!(fields("a.b", r#"{"x":1,"x":2,"a":{"y":1,"b":5,"y":2}}"#), ["n:5"]);
}

#[test]
fn texts_say_where_and_what() {
    for (value, expected) in [
        (r#"{"a":1}"#, r#"key field "a.b" is missing"#),
        (r#"{"a":{"b":null}}"#, r#"key field "a.b" is null"#),
        (r#"{"a":{"b":{}}}"#, r#"key field "a.b" is an object, not text, a number or a boolean"#),
        (r#"{"a":{"b":1},"a":2}"#, r#"member "a" on the path to "a.b" stands twice in its object"#),
        ("{\"\u{e9}\":1,\n \"b\" 2}", "not JSON: expected `:` at line 2 column 6"),
        (r#"{"a":"#, "not JSON: EOF while parsing a value at line 1 column 5"),
    ] {
        assert_eq!(refusal("a.b", value).1, expected);
    }
    assert_eq!(refusal("a", b"{\"a\":\"\xff\"}").1, "not UTF-8 at byte 6");
}

#[test]
fn timestamps_are_milliseconds_or_rfc_3339() {
    for (text, expected) in [
        ("1600000000000", 1_600_000_000_000),
        ("0", 0),
        (r#""2020-09-13T12:26:40Z""#, 1_600_000_000_000),
        (r#""2020-09-13T14:26:40.5+02:00""#, 1_600_000_000_500),
    ] {
        assert_eq!(timestamp(&format!(r#"{{"k":1,"t":{text}}}"#)), Ok(Some(expected)), "{text}");
    }
    for text in ["-1", "1.5", "1e3", "null", "true", "{}", r#""yesterday""#, r#""1969-12-31T23:59:59Z""#, r#""\ud800""#]
    {
        let refused = timestamp(&format!(r#"{{"k":1,"t":{text}}}"#)).expect_err(text);
        assert_eq!(refused.reason, Reason::InvalidTimestamp, "{text}");
    }
    assert_eq!(timestamp(r#"{"k":1}"#).expect_err("missing").error, r#"timestamp "t" is missing"#);
    assert_eq!(timestamp(r#"{"k":1,"t":1,"t":1}"#).expect_err("twice").reason, Reason::KeyAmbiguous);
    assert_eq!(timestamp(r#"{"t":"x"}"#).expect_err("both").reason, Reason::KeyMissing, "the key comes first");
}

#[test]
fn a_timestamp_can_be_a_key_field_too() {
    let mut fields = Fields::default();
    assert_eq!(extractor("t", Some("t")).extract(b"{\"t\":5}", &mut fields), Ok(Some(5)));
    assert_eq!(fields.0, ["n:5"]);
}

#[test]
fn impossible_sets_of_paths_are_refused() {
    let new = |keys: &str| Extractor::new(&Path::list(keys).expect("paths"), None).expect_err(keys).to_string();
    assert_eq!(new("a,a.b"), "\"a.b\" is inside of \"a\": a field is text, a number or a boolean");
    assert!(new(&vec!["a"; 17].join(",")).contains("at most 16"));
    assert!(new(&vec!["a"; 65].join(".")).contains("at most 64"));
    assert!(Extractor::new(&[], None).is_err());
}

#[test]
fn nesting_is_bounded_by_memory_only() {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let objects = "{\"a\":".repeat(10_000) + "1" + &"}".repeat(10_000);
    assert_eq!(fields("k", &format!(r#"{{"x":{deep},"y":{objects},"k":1}}"#)), ["n:1"]);
    assert_eq!(reason("k", format!(r#"{{"k":{deep}}}"#)), Reason::KeyNotScalar);
    assert_eq!(reason("a", &objects), Reason::KeyNotScalar);
    assert_eq!(reason("k", "[".repeat(5_000_000)), Reason::InvalidJson);
    assert_eq!(reason("k", "{\"k\":".repeat(1_000_000)), Reason::InvalidJson);
}

#[test]
fn the_longest_path_is_within_the_recursion_of_serde_json() {
    let path = vec!["a"; MAX_NAMES].join(".");
    let inside = |value: &str| "{\"a\":".repeat(MAX_NAMES) + value + &"}".repeat(MAX_NAMES);
    assert_eq!(fields(&path, &inside("1")), ["n:1"]);
    assert_eq!(reason(&path, inside(&inside("1"))), Reason::KeyNotScalar);
    let arrays = |value: &str| format!(r#"{{"0":{}{value}{}}}"#, "[".repeat(MAX_NAMES - 1), "]".repeat(MAX_NAMES - 1));
    let path = vec!["0"; MAX_NAMES].join(".");
    assert_eq!(fields(&path, &arrays("1")), ["n:1"]);
    assert_eq!(reason(&path, arrays(r#"[],1e999"#)), Reason::KeyNotScalar);
}

#[test]
fn a_document_of_40_megabytes_passes() {
    let item = r#"{"text":"some text with \"escapes\" and é","numbers":[1,2.5,-3e7]},"#;
    let value = format!(r#"{{"items":[{}null],"k":"end"}}"#, item.repeat((40 << 20) / item.len()));
    assert_eq!(fields("k", &value), ["t:end"]);
}

const DOCUMENT: &str = r#"{"a" : {"b":"\u00e9\\","c":[1,-2.5e+10,0.1,true,false,null,{},[],""]}, "d":"text of some length","e":{"f":{"g":[[1],[2]]}}}"#;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Whatever is done to a document, and wherever the paths lead, it is JSON exactly if serde_json can ignore it as a whole.
    #[test]
    fn accepts_what_serde_json_accepts(edits in prop::collection::vec((0..DOCUMENT.len(), 0..3u8, prop::sample::select(
        b"{}[]\",:\\ \n\t0123456789.-+eEtrufalsnbx/\x00\x1f\x7f".to_vec())), 1..4)) {
        let mut document = DOCUMENT.as_bytes().to_vec();
        for (at, what, byte) in edits {
            let at = at % document.len();
            match what {
                0 => document[at] = byte,
                1 => document.insert(at, byte),
                _ => { document.remove(at); }
            }
        }
        let ours = match extractor("a.b.x,a.c.1.x,d.x,e.f.g.0.0", None).extract(&document, &mut Fields::default()) {
            Ok(_) => true,
            Err(refused) => !matches!(refused.reason, Reason::InvalidJson | Reason::InvalidUtf8 | Reason::SchemaFramed),
        };
        let text = std::str::from_utf8(&document);
        let theirs = text.is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok());
        prop_assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(&document));
    }

    /// Text comes back as it was written, with escapes and without.
    #[test]
    fn strings_of_every_length_are_found(before in "[a-z\u{e9}]{0,20}", text in any::<String>()) {
        let value = serde_json::json!({ "x": before, "k": text }).to_string();
        prop_assert_eq!(fields("k", &value), [format!("t:{text}")]);
    }
}
