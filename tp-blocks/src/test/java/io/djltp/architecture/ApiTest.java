package io.djltp.architecture;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.SortedSet;
import java.util.TreeSet;

/**
 * What is public stays: nothing is gone that {@code src/api} of a module has written down. With
 * {@code -Ddjltp.api=write} it is written anew.
 */
public class ApiTest {

    /** Of the module that is tested: tp-spark runs this too. */
    private static final Path FOLDER =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize();

    @DataProvider
    public static Object[][] modules() {
        return Boolean.getBoolean("djltp.spark")
                ? new Object[][] {{"tp-spark", FOLDER}}
                : new Object[][] {
                    {"tp-engine-bridge", FOLDER.resolveSibling("tp-engine-bridge")},
                    {"tp-blocks", FOLDER}
                };
    }

    @Test(dataProvider = "modules")
    public void nothingIsGone(String module, Path folder) throws IOException {
        Path file = folder.resolve("src/api").resolve(module + ".txt");
        SortedSet<String> now = PublicApi.of(folder.resolve("target/classes"));
        if ("write".equals(System.getProperty("djltp.api"))) {
            Files.createDirectories(file.getParent());
            Files.write(file, now);
        }
        Set<String> before = new TreeSet<>(Files.readAllLines(file));
        List<String> changes = ApiChange.between(before, now);
        Assert.assertEquals(
                changes,
                List.of(),
                "programs written against "
                        + file
                        + " break; if that is meant, say so in CHANGELOG.md and run ApiTest with"
                        + " -Ddjltp.api=write:\n"
                        + String.join("\n", changes)
                        + "\n");
    }

    /** A type before and after. */
    public static class Before {
        /** Is public. */
        public int count;

        protected void protectedMethod() {}

        public void kept(List<String> list) {}

        public void gone() {}

        void notPublic() {}
    }

    /** After. */
    public abstract static class After {
        public void kept(List<String> list) {}

        public void protectedMethod() {}

        public void added() {}

        public abstract void demanded();
    }

    @Test
    public void whatBreaksIsFound() {
        SortedSet<String> after = new TreeSet<>();
        PublicApi.of(After.class).forEach(fact -> after.add(fact.replace("$After", "$Before")));
        String type = Before.class.getName();
        Assert.assertEquals(
                ApiChange.between(PublicApi.of(Before.class), after),
                List.of(
                        "gone: " + type + " count: int",
                        "gone: " + type + " gone(): void",
                        "new: " + type + " demanded(): void must be written"));
        Assert.assertEquals(ApiChange.between(after, after), List.of());
    }
}
