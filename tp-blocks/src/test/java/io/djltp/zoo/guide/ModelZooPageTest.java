package io.djltp.zoo.guide;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The programs of the page on the zoo are those of this package, and they run. */
public class ModelZooPageTest {

    private static final Pattern PROGRAM =
            Pattern.compile("```java\\n(import .*?public class (\\w+).*?)```", Pattern.DOTALL);

    private interface Program {
        void run(String... args) throws Exception;
    }

    @DataProvider
    public static Object[][] programs() {
        return new Object[][] {
            {"Lemmas", (Program) Lemmas::main},
            {"OwnModel", (Program) OwnModel::main},
            {"NewHead", (Program) NewHead::main}
        };
    }

    @Test(dataProvider = "programs", timeOut = 60_000)
    public void theProgramIsThatOfThePageAndRuns(String name, Object program) throws Exception {
        Matcher blocks = PROGRAM.matcher(Files.readString(Path.of("../docs/model-zoo.md")));
        String shown =
                blocks.results()
                        .filter(block -> block.group(2).equals(name))
                        .map((MatchResult block) -> block.group(1))
                        .findFirst()
                        .orElse("");
        assertEquals(shown.replaceAll("\\s+", " "), source(name).replaceAll("\\s+", " "));
        ((Program) program).run();
    }

    private static String source(String name) throws IOException {
        Path file = Path.of("src/test/java/io/djltp/zoo/guide", name + ".java");
        String source = Files.readString(file);
        assertTrue(source.startsWith("package "));
        return source.substring(source.indexOf("import "));
    }
}
