// Add the settings of $NODE_RDKAFKA_LOGIN, a JSON object, to each client that node-rdkafka's tests make.
//
// In: `mocha --require` this file, in the package's directory. Out: the native constructors, wrapped. It changes no test.
const native = require(`${process.cwd()}/librdkafka.js`);
const login = JSON.parse(process.env.NODE_RDKAFKA_LOGIN);
for (const kind of ['Producer', 'KafkaConsumer', 'AdminClient']) {
  native[kind] = new Proxy(native[kind], {
    construct: (made, [settings, ...more]) => new made({ ...settings, ...login }, ...more),
  });
}
