// kafkajs at a test's command: node kafkajs_client.js PACKAGE ADDRESS produce|consume|admin JSON
//
// In: what to do, as JSON. Out: what it saw, as JSON on the last line. It never judges: the test does.
const { Kafka, logLevel } = require(process.argv[2]);
const asked = JSON.parse(process.argv[5]);
const { token, ...settings } = asked.settings;
if (token) settings.sasl = { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: token }) };
const kafka = new Kafka({ brokers: process.argv[3].split(","), logLevel: logLevel.ERROR, clientId: "kafkajs", ...settings });

const text = (bytes) => (bytes === null || bytes === undefined ? null : bytes.toString());
const texts = (headers) => Object.entries(headers || {}).map(([name, value]) => [name, text(value)]);

async function produce() {
  const producer = kafka.producer({ idempotent: asked.idempotent, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = asked.records.map(([key, value, headers]) => ({
    key, value, headers: Object.fromEntries(headers), partition: 0,
  }));
  const compression = asked.codec === "gzip" ? 1 : 0;
  const told = await producer.send({ topic: asked.topic, messages, acks: -1, compression });
  await producer.disconnect();
  return told;
}

async function consume() {
  const consumer = kafka.consumer({ groupId: asked.group });
  const seen = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [asked.topic], fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error));
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        if (seen.length === asked.count) return;
        const { key, value, offset, timestamp, headers } = message;
        seen.push([partition, Number(offset), Number(timestamp), text(key), text(value), texts(headers)]);
        if (seen.length < asked.count) return;
        await consumer.commitOffsets([{ topic, partition, offset: String(Number(offset) + 1) }]);
        resolve();
      },
    }).catch(reject);
  });
  await consumer.disconnect();
  return seen;
}

async function admin() {
  const client = kafka.admin();
  await client.connect();
  const told = [];
  for (const [name, argument] of asked.calls) {
    try {
      told.push((await client[name](argument)) ?? null);
    } catch (error) {
      told.push({ error: error.type || error.errors?.map((one) => one.type) || error.message });
    }
  }
  await client.disconnect();
  return told;
}

({ produce, consume, admin })[process.argv[4]]().then(
  (told) => console.log(JSON.stringify(told, (_, value) => (typeof value === "bigint" ? `${value}` : value))),
  (error) => { console.error(error); process.exit(1); },
);
