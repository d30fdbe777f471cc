// Reads texts of settings as Apache Kafka reads them, for test_setting_texts.py and test_settings.py.
// In: lines of a table, a name and a text in base64; or of a whole properties file in base64. Out: one line for each:
// "bad", or "ok" and the value in base64. Nothing is kept.
// Kafka: ConfigDef.parse with the definition of one setting; KafkaConfig for a whole file.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

public class ConfigValues {
    public static void main(String[] args) throws Exception {
        Map<String, Map<String, ConfigDef.ConfigKey>> tables = Map.of(
            "broker", AbstractKafkaConfig.CONFIG_DEF.configKeys(),
            "topic", LogConfig.configDefCopy().configKeys());
        Map<String, ConfigDef> alone = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            if (fields[0].equals("file")) {
                answers.append(file(text(fields[1]))).append('\n');
                continue;
            }
            ConfigDef one = alone.computeIfAbsent(fields[0] + "\t" + fields[1],
                key -> new ConfigDef().define(tables.get(fields[0]).get(fields[1])));
            answers.append(value(one, fields[1], text(fields[2]))).append('\n');
        }
        System.out.print(answers);
    }

    private static String value(ConfigDef alone, String name, String text) {
        try {
            Object value = alone.parse(Map.of(name, text)).get(name);
            if (value instanceof List<?> items) {
                return "ok\t" + items.stream().map(item -> base64((String) item) + ";").collect(Collectors.joining());
            }
            return "ok\t" + base64(value instanceof Password secret ? secret.value() : String.valueOf(value));
        } catch (ConfigException refused) {
            return "bad";
        }
    }

    private static String file(String text) throws Exception {
        Properties properties = new Properties();
        properties.load(new StringReader(text));
        try {
            KafkaConfig config = new KafkaConfig(properties, false);
            Map<String, Object> found = new TreeMap<>(config.extractLogConfigMap());
            found.put("node.id", config.nodeId());
            found.put("broker.id", config.brokerId());
            found.put("log.dirs", String.join(",", config.logDirs()));
            found.put("metadata.log.dir", config.metadataLogDir());
            String pairs = found.entrySet().stream().map(String::valueOf).collect(Collectors.joining("\n"));
            return "ok\t" + base64(pairs);
        } catch (RuntimeException refused) {
            return "bad";
        }
    }

    private static String text(String field) {
        return new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8);
    }

    private static String base64(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
