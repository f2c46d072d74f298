package io.djltp.classes;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.IntStream;

public class ClassNamesTest {

    @Test
    public void namesHaveNumbers() {
        List<String> names = IntStream.range(0, 100_000).mapToObj(i -> "n" + i * 7919).toList();
        ClassNames classes = ClassNames.of(names);
        Assert.assertEquals(classes, names);
        for (int i = 0; i < names.size(); i += 97) {
            Assert.assertEquals(classes.indexOf(names.get(i)), i);
        }
        Assert.assertEquals(classes.indexOf("n1"), -1);
        Assert.assertEquals(classes.indexOf(1), -1);
        Assert.assertFalse(classes.contains(""));
        Assert.assertThrows(IndexOutOfBoundsException.class, () -> classes.get(100_000));
        Assert.assertThrows(IndexOutOfBoundsException.class, () -> classes.get(-1));
    }

    @Test
    public void namesAreSavedAsLines() throws IOException {
        Path file = TestFolder.create().resolve("labels");

        List<String> names = List.of("", "a\nb", "a\\nb", "\\", "\r", "täglich😀", " ", "\u2028");
        ClassNames.of(names).save(file);
        Assert.assertEquals(ClassNames.load(file), names);
        Assert.assertEquals(Files.readAllLines(file).size(), names.size());
        Files.writeString(file, "a\nb\na\n");
        IllegalArgumentException error =
                Assert.expectThrows(IllegalArgumentException.class, () -> ClassNames.load(file));
        Assert.assertTrue(error.getMessage().startsWith("Class 2 of " + file), "" + error);
    }

    @Test
    public void namesDoNotRepeat() {
        Assert.assertThrows(
                IllegalArgumentException.class, () -> ClassNames.of(List.of("a", "b", "a")));
    }

    @Test
    public void wholeNumbersAreInOrder() {
        int[] moved = {0, 1, 2};
        Assert.assertEquals(
                ClassNames.of(List.of("10", "9", "0")).inOrder(moved), List.of("0", "9", "10"));
        Assert.assertEquals(moved, new int[] {2, 1, 0});
        for (String other : new String[] {"x", "01", "-1", "", "1234567890", "1.0"}) {
            List<String> names = List.of("7", other, "3");
            Assert.assertEquals(ClassNames.of(names).inOrder(new int[3]), names);
        }
    }
}
