import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Scanner;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * For each line of standard input one of text in base64. "name" and the DER of a subject: its name. "rule", rules and
 * a name: the name of the principal, "?" where no rule matches, "!" and the error where the rules or a login fail.
 * "host" and an address: the text with which an ACL's host is compared.
 */
class PrincipalNames {
    static byte[] bytes(String word) {
        return Base64.getDecoder().decode(word);
    }

    static String text(String word) {
        return new String(bytes(word), StandardCharsets.UTF_8);
    }

    static String answer(String[] words) {
        try {
            if (words[0].equals("name")) {
                return new X500Principal(bytes(words[1])).getName();
            }
            if (words[0].equals("host")) {
                return InetAddress.getByName(text(words[1])).getHostAddress();
            }
            return SslPrincipalMapper.fromRules(text(words[1])).getName(words.length > 2 ? text(words[2]) : "");
        } catch (SslPrincipalMapper.NoMatchingRule none) {
            return "?";
        } catch (Exception | StackOverflowError error) {
            return "!" + error.getClass().getSimpleName();
        }
    }

    public static void main(String[] args) {
        var lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            var answer = answer(lines.nextLine().split(" ")).getBytes(StandardCharsets.UTF_8);
            System.out.println(Base64.getEncoder().encodeToString(answer));
        }
    }
}
