package io.djltp.architecture;

import static com.tngtech.archunit.base.DescribedPredicate.describe;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static com.tngtech.archunit.library.dependencies.SlicesRuleDefinition.slices;

import ai.djl.ndarray.NDArrays;

import com.tngtech.archunit.core.domain.JavaClass;
import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.importer.ClassFileImporter;
import com.tngtech.archunit.core.importer.ImportOption;
import com.tngtech.archunit.library.GeneralCodingRules;

import io.djltp.internal.torch.TorchOperations;

import org.bytedeco.pytorch.AbstractTensor;
import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Dependencies between packages point down, without circles. */
public class PackagesTest {

    private static final String ROOT = "io.djltp.";

    /** The packages of both modules of the library, from the lowest to the highest. */
    private static final List<String> BRIDGE =
            List.of(
                    ("internal cut environment head internal.environment internal.events"
                                    + " internal.libtorch job internal.job internal.sockets torch"
                                    + " internal.torch collective internal.collective"
                                    + " internal.collective.local internal.collective.nccl"
                                    + " internal.collective.tcp internal.decode internal.region"
                                    + " internal.update internal.head launch")
                            .split(" "));

    private static final List<String> BLOCKS =
            List.of(
                    ("internal.files internal.layout internal.report internal.safetensors"
                                    + " optimizer rank internal.forecast internal.optimizer internal.rank"
                                    + " sharding internal.parameters internal.gradient internal.loss loss nn"
                                    + " nn.mlp nn.moe cost nn.norm nn.attention nn.transformer plan search"
                                    + " training checkpoint exchange report zoo classes")
                            .split(" "));

    /** The module that only tp-spark's run of this test has on its class path. */
    private static final List<String> SPARK =
            Boolean.getBoolean("djltp.spark") ? List.of("spark", "spark.ml") : List.of();

    /** The module that only tp-llm's run of this test has on its class path. */
    private static final List<String> LLM =
            Boolean.getBoolean("djltp.llm")
                    ? List.of(
                            "internal.http",
                            "llm",
                            "llm.langchain4j",
                            "llm.serve",
                            "llm.tune",
                            "llm.zoo")
                    : List.of();

    private static final List<String> ORDER =
            Stream.of(BRIDGE, BLOCKS, SPARK, LLM).flatMap(List::stream).toList();

    private JavaClasses classes;

    @BeforeClass
    public void readClasses() {
        classes =
                new ClassFileImporter()
                        .withImportOption(ImportOption.Predefined.DO_NOT_INCLUDE_TESTS)
                        .withImportOption(location -> !location.contains("/djltp/examples/"))
                        .importPackages("io.djltp");
    }

    @DataProvider
    public static Object[][] packages() {
        return ORDER.stream().map(name -> new Object[] {name}).toArray(Object[][]::new);
    }

    @Test
    public void everyPackageHasItsPlace() {
        Set<String> found =
                classes.stream()
                        .map(type -> type.getPackageName().substring(ROOT.length()))
                        .collect(Collectors.toCollection(TreeSet::new));
        Assert.assertEquals(found, new TreeSet<>(ORDER));
    }

    @Test(dataProvider = "packages")
    public void aPackageDependsOnLowerOnesOnly(String name) {
        String[] above =
                ORDER.subList(ORDER.indexOf(name) + 1, ORDER.size()).stream()
                        .map(each -> ROOT + each)
                        .toArray(String[]::new);
        noClasses()
                .that()
                .resideInAPackage(ROOT + name)
                .should()
                .dependOnClassesThat()
                .resideInAnyPackage(above)
                .check(classes);
    }

    /** Java has no package in two modules. */
    @Test
    public void noPackageIsInTwoModules() {
        Map<String, Set<String>> places =
                classes.stream()
                        .collect(
                                Collectors.groupingBy(
                                        JavaClass::getPackageName,
                                        Collectors.mapping(
                                                PackagesTest::moduleOf, Collectors.toSet())));
        places.values().removeIf(modules -> modules.size() == 1);
        Assert.assertEquals(places, Map.of());
    }

    private static String moduleOf(JavaClass type) {
        String place = type.getSource().orElseThrow().getUri().toString();
        return place.substring(0, place.indexOf("io/djltp/"));
    }

    @Test
    public void thereAreNoCircles() {
        slices().matching("io.djltp.(**)").should().beFreeOfCycles().check(classes);
    }

    /** The engine of DJL and the presets of JavaCPP are the bridge's affair. */
    @Test
    public void onlyTheBridgeTouchesTheEngine() {
        noClasses()
                .that()
                .resideInAnyPackage(
                        Stream.of(BLOCKS, SPARK, LLM)
                                .flatMap(List::stream)
                                .map(ROOT::concat)
                                .toArray(String[]::new))
                .should()
                .dependOnClassesThat()
                .resideInAnyPackage("ai.djl.pytorch..", "org.bytedeco..", "com.sun.jna..")
                .check(classes);
    }

    /** No rule about packages; but to read all classes takes seconds. */
    @Test
    public void stepsReadInOnePlace() {
        HostReadsRule.check(classes);
    }

    /** Of one array, DJL's method returns a copy that is no part of the graph. */
    @Test
    public void arraysArePutTogetherInOnePlace() {
        noClasses()
                .that()
                .doNotHaveFullyQualifiedName(TorchOperations.class.getName())
                .should()
                .callMethodWhere(
                        describe(
                                "calls NDArrays.concat",
                                call ->
                                        call.getTargetOwner().isEquivalentTo(NDArrays.class)
                                                && "concat".equals(call.getName())))
                .check(classes);
    }

    /** These methods of the preset write by sun.misc.Unsafe, of which newer JVMs warn. */
    @Test
    public void nothingIndexesTensorsByUnsafe() {
        noClasses()
                .should()
                .callMethodWhere(
                        describe(
                                "it uses JavaCPP's indexers",
                                call ->
                                        call.getTargetOwner().isAssignableTo(AbstractTensor.class)
                                                && call.getName().matches("create(Indexer)?")))
                .check(classes);
    }

    @Test
    public void theLibraryDoesNotPrint() {
        GeneralCodingRules.NO_CLASSES_SHOULD_ACCESS_STANDARD_STREAMS.check(classes);
    }
}
