import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import java.util.Scanner;
import java.util.TreeMap;

/** For each line of standard input, a text in base64: its pairs as java.util.Properties reads them, in base64. */
class PropertiesRead {
    static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    public static void main(String[] args) throws Exception {
        var lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            var text = new String(Base64.getDecoder().decode(lines.nextLine()), StandardCharsets.UTF_8);
            var found = new Properties();
            var shown = new StringBuilder();
            try {
                found.load(new StringReader(text));
                for (var pair : new TreeMap<Object, Object>(found).entrySet()) {
                    shown.append(encoded((String) pair.getKey()) + ":" + encoded((String) pair.getValue()) + " ");
                }
            } catch (IllegalArgumentException malformed) {
                shown.append("malformed");
            }
            System.out.println(shown);
        }
    }
}
