// Prints Apache Kafka's own tables of settings, for test_settings.py. Nothing in, tab-separated lines out, nothing kept.
// Kafka: AbstractKafkaConfig.CONFIG_DEF, LogConfig.configDefCopy, DynamicBrokerConfig.dynamicConfigUpdateModes.

import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

public class ConfigDefs {
    public static void main(String[] args) {
        print("broker", AbstractKafkaConfig.CONFIG_DEF);
        print("topic", LogConfig.configDefCopy());
        for (Map.Entry<String, String> mode : new TreeMap<>(DynamicBrokerConfig.dynamicConfigUpdateModes()).entrySet()) {
            System.out.println("mode\t" + mode.getKey() + "\t" + mode.getValue());
        }
    }

    private static void print(String table, ConfigDef settings) {
        for (ConfigDef.ConfigKey key : settings.configKeys().values()) {
            if (!key.internalConfig) {
                String validator = String.valueOf(key.validator).replace("\n", " ");
                System.out.println(String.join("\t", table, key.name, key.type.toString(), defaultOf(key), validator));
            }
        }
    }

    private static String defaultOf(ConfigDef.ConfigKey key) {
        if (key.defaultValue == ConfigDef.NO_DEFAULT_VALUE) {
            return "none";
        }
        return key.defaultValue == null ? "null" : ConfigDef.convertToString(key.defaultValue, key.type);
    }
}
