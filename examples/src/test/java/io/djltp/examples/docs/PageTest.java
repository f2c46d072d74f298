package io.djltp.examples.docs;

import ai.djl.util.Utils;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** What is wrong in a page is found, at its line. */
public class PageTest {

    private static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();

    private Path folder;

    @BeforeMethod
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("pages");
    }

    @AfterMethod(alwaysRun = true)
    public void deleteFolder() {
        Utils.deleteQuietly(folder);
    }

    @Test
    public void errorsHaveTheLinesOfThePage() throws IOException {
        List<String> errors =
                errors(
                        """
                        # A page

                        ```java
                        int a = 1;
                        int b = "no";
                        ```

                        <!-- java
                        import java.math.BigInteger;
                        int c = d;
                        -->
                        ```java
                        BigInteger e = BigInteger.valueOf(f);
                        ```
                        <!-- java then
                        g();
                        -->

                        ```java
                        public class Whole {
                            int h = i;
                        }
                        ```
                        """);
        Assert.assertEquals(errors.size(), 5, errors.toString());
        String[] places = {
            "5: incompatible types", "10: cannot", "13: cannot", "16: cannot", "21: c"
        };
        for (int i = 0; i < places.length; i++) {
            Assert.assertTrue(errors.get(i).startsWith("page.md:" + places[i]), errors.toString());
        }
    }

    @Test
    public void whatIsRightCompiles() throws IOException {
        List<String> errors =
                errors(
                        """
                        ```java
                        ParallelConfig.builder()          // an expression
                                .setRanks(2)
                        ```
                        <!-- java members
                        -->
                        ```java
                        int twice(int... x) {
                            return 2 * x[0];
                        }
                        ```
                        <!-- java skipped: not Java -->
                        ```java
                        no Java
                        ```
                        ```java
                        try (Model model = Model.newInstance("a")) {
                            ...                           // what the reader has
                        }
                        ```
                        """);
        Assert.assertEquals(errors, List.of());
    }

    @Test
    public void programsAreRunAndFragmentsWhereThePageSaysSo() {
        List<Snippet> snippets =
                read(
                        """
                        ```java
                        public class Program {
                            public static void main(String[] args) {}
                        }
                        ```
                        ```java
                        int a = 1;
                        ```
                        <!-- java run
                        int b = 1;
                        -->
                        ```java
                        int a = b;
                        ```
                        """);
        Assert.assertEquals(
                snippets.stream().map(Snippet::isRun).toList(), List.of(true, false, true));
    }

    @DataProvider
    public static Object[][] wrong() {
        return new Object[][] {
            {"<!-- java skipped: -->\n```java\n```", "page.md:1: say why"},
            {"<!-- java sometimes -->\n```java\n```", "page.md:1: not a comment"},
            {"\n```java\nint a;", "page.md:2: the block does not end"},
            {"- a list\n  ```java\n  ```", "page.md:2: a block of Java begins with"},
        };
    }

    @Test(dataProvider = "wrong")
    public void whatCannotBeReadIsRefused(String text, String message) {
        IllegalArgumentException e =
                Assert.expectThrows(IllegalArgumentException.class, () -> read(text));
        Assert.assertTrue(e.getMessage().startsWith(message), e.getMessage());
    }

    private static List<Snippet> read(String text) {
        return Page.read(Path.of("page.md"), text.lines().toList());
    }

    private List<String> errors(String text) throws IOException {
        List<Snippet> snippets =
                read(text).stream().filter(each -> each.mark() != Snippet.Mark.SKIPPED).toList();
        return new SnippetCompiler(ROOT, folder).compile(snippets);
    }
}
