package io.djltp.rank;

import static io.djltp.testing.Refusals.throwsArgument;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import org.testng.annotations.Test;

import java.util.List;
import java.util.stream.IntStream;

/** Which rank is where on a mesh, and what is refused. */
public class DeviceMeshTest {

    @Test
    public void theLastAxisIsTheFastest() {
        DeviceMesh mesh = DeviceMesh.of("data", 2, "tensor", 3);
        assertEquals(mesh.getRanks(), 6);
        assertEquals(mesh.getNames(), List.of("data", "tensor"));
        assertEquals(coordinates(mesh, "data"), new int[] {0, 0, 0, 1, 1, 1});
        assertEquals(coordinates(mesh, "tensor"), new int[] {0, 1, 2, 0, 1, 2});
        assertEquals(firstRanks(mesh, "data"), new int[] {0, 1, 2, 0, 1, 2});
        assertEquals(firstRanks(mesh, "tensor"), new int[] {0, 0, 0, 3, 3, 3});
        assertEquals(mesh.getFirstReplica(4), 1);
        assertEquals(mesh.toString(), "data 2 x tensor 3");
    }

    @Test
    public void aMeshMayHaveMoreAxes() {
        DeviceMesh mesh =
                DeviceMesh.builder()
                        .addAxis("data", 2)
                        .addAxis("pipeline", 2)
                        .addAxis("tensor", 3)
                        .build();
        assertEquals(mesh.getRanks(), 12);
        assertEquals(mesh.getCoordinate(10, "data"), 1);
        assertEquals(mesh.getCoordinate(10, "pipeline"), 1);
        assertEquals(mesh.getCoordinate(10, "tensor"), 1);
        assertEquals(mesh.getFirstRank(10, "pipeline"), 7);
        assertEquals(mesh.getSize("pipeline"), 2);
    }

    @Test
    public void aModeIsAMesh() {
        DeviceMesh tensor = DeviceMesh.of(ParallelMode.TENSOR, 3);
        assertEquals(tensor.getNames(), List.of("tensor"));
        assertTrue(tensor.isCut("tensor"));
        assertFalse(tensor.isCut("data"));
        assertEquals(tensor.getFirstReplica(2), 2);
        DeviceMesh data = DeviceMesh.of(ParallelMode.DATA, 3);
        assertEquals(data.getNames(), List.of("data"));
        assertEquals(data.getFirstReplica(2), 0);
        DeviceMesh mixed = DeviceMesh.of(ParallelMode.MIXED, 3);
        assertTrue(mixed.isOverlaid());
        assertEquals(mixed.getRanks(), 3);
        assertEquals(coordinates(mixed, "data"), new int[] {0, 1, 2});
        assertEquals(coordinates(mixed, "tensor"), new int[] {0, 1, 2});
        assertEquals(mixed.getFirstReplica(2), 2);
    }

    @Test
    public void aMeshIsReadFromText() {
        assertEquals(DeviceMesh.parse("2x3").toString(), "data 2 x tensor 3");
        assertEquals(DeviceMesh.parse(" 1 X 4 ").toString(), "data 1 x tensor 4");
        for (String text : new String[] {"", "2", "2x", "2x3x4", "ax2", "-1x2", "2*3"}) {
            throwsArgument(() -> DeviceMesh.parse(text), "such as 2x3", "'" + text + "'");
        }
        throwsArgument(() -> DeviceMesh.parse(null), "such as 2x3", "'null'");
        throwsArgument(() -> DeviceMesh.parse("0x2"), "'data'", "1 rank or more, not 0");
        throwsArgument(() -> DeviceMesh.parse("99999999999x2"), "too many ranks");
        throwsArgument(() -> DeviceMesh.parse("99999x99999"), "more than 2147483647 ranks");
    }

    @Test
    public void whatIsNoMeshIsRefused() {
        throwsArgument(() -> DeviceMesh.of("data", 2, "data", 2), "'data'", "named twice");
        throwsArgument(() -> DeviceMesh.of("data", 2, "tensor", -1), "'tensor'", "not -1");
        throwsArgument(() -> DeviceMesh.builder().build(), "needs an axis", "addAxis");
        throwsArgument(() -> DeviceMesh.of(ParallelMode.MIXED, 0), "1 rank or more, not 0");
        DeviceMesh mesh = DeviceMesh.of("data", 2, "tensor", 3);
        throwsArgument(() -> mesh.getSize("tensors"), "'tensors'", "its axes are data, tensor");
        throwsArgument(() -> mesh.getCoordinate(6, "data"), "0 to 5, not 6");
    }

    private static int[] coordinates(DeviceMesh mesh, String axis) {
        return IntStream.range(0, mesh.getRanks())
                .map(rank -> mesh.getCoordinate(rank, axis))
                .toArray();
    }

    private static int[] firstRanks(DeviceMesh mesh, String axis) {
        return IntStream.range(0, mesh.getRanks())
                .map(rank -> mesh.getFirstRank(rank, axis))
                .toArray();
    }
}
