package io.djltp.plan;

import ai.djl.nn.Activation;

import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/** What a pattern matches, and what is no pattern. */
public class PathPatternTest {

    @DataProvider
    public static Object[][] paths() {
        return new Object[][] {
            {"", "", true},
            {"", "a", false},
            {"**", "", true},
            {"**", "a.b.c", true},
            {"encoder.*.query", "encoder.3.query", true},
            {"encoder.*.query", "encoder.query", false},
            {"encoder.*.query", "encoder.3.4.query", false},
            {"encoder.**.query", "encoder.query", true},
            {"encoder.**.query", "encoder.3.4.query", true},
            {"**.query", "query", true},
            {"**.query", "a.query.b", false},
            {"layers.[0-3].up", "layers.2.up", true},
            {"layers.[0-3].up", "layers.4.up", false},
            {"layers.[!0-3].up", "layers.4.up", true},
            {"layers.[!0-3].up", "layers.0.up", false},
            {"layers.[ab]", "layers.b", true},
            {"layers.[1-2]?", "layers.15", true},
            {"*Linear", "03Linear", true},
            {"0?Linear", "03Linear", true},
            {"0?Linear", "13Linear", false},
            {"a+b", "a+b", true},
            {"a+b", "aab", false},
        };
    }

    @Test(dataProvider = "paths")
    public void matchesWholePaths(String text, String path, boolean matches) {
        BlockTree tree = new BlockTree(Activation.reluBlock());
        BlockTree.Node end = tree.root();
        if (!path.isEmpty()) {
            end = new BlockTree(Activation.reluBlock()).root();
            tree.root().below().put(end, List.of(List.of(path.split("\\."))));
        }
        Assert.assertEquals(new PathPattern(text).match(tree).contains(end), matches, text);
    }

    @DataProvider
    public static Object[][] noPatterns() {
        return new Object[][] {{"a..b"}, {".a"}, {"a**"}, {"a.[0-"}, {"a.[]"}, {"a.[0-3"}};
    }

    @Test(dataProvider = "noPatterns")
    public void refusesWhatIsNoPattern(String text) {
        Refusals.throwsArgument(() -> Plan.of(text, Style.column()), "\"" + text + "\"");
    }
}
