#!/bin/bash
# usage: certs.sh DATA_FOLDER
#
# Makes DATA_FOLDER/tls for secure.properties.in: an authority (ca.crt), a certificate of the broker signed by it
# (broker.pem: key and chain), one of a client (client.crt, client.key), and an authority that signed nothing (other.crt).
set -eu
[ $# -eq 1 ] || { sed -n 2,5p "$0" | cut -c3- >&2; exit 2; }
command -v openssl >/dev/null || { echo "openssl is missing; it comes with: apt-get install openssl" >&2; exit 1; }
mkdir -p "$1/tls"
cd "$1/tls"
key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)

authority() { # authority NAME
  openssl req -x509 "${key[@]}" -days 30 -subj "/CN=$1" -keyout "$1.key" -out "$1.crt"
}

signed() { # signed NAME: the key is PKCS#8, the form that Kafka's PEM reader takes
  openssl req "${key[@]}" -subj "/CN=$1" -keyout "$1.key" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" \
    -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1")
}

make() { authority ca && authority other && signed broker && signed client && cat broker.key broker.crt ca.crt >broker.pem; }
make 2>openssl.out || { cat openssl.out >&2; exit 1; }
