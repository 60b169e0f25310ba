// See blobs.sh. The account and its key are those that every Azurite has.
const { BlobServiceClient, StorageSharedKeyCredential } = require("@azure/storage-blob");

const [host, action, prefix] = process.argv.slice(2);
const account = "devstoreaccount1";
const key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const service = new BlobServiceClient(`http://${host}/${account}`, new StorageSharedKeyCredential(account, key));
const container = service.getContainerClient("syncline");

async function main() {
  if (action === "create") {
    await container.createIfNotExists();
  } else if (action === "list") {
    for await (const blob of container.listBlobsFlat({ prefix })) {
      console.log(`${blob.name} ${blob.properties.contentLength}`);
    }
  } else {
    throw new Error(`there is no ${action}`);
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
