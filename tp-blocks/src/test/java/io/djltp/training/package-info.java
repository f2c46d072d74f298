/** Contains the tests of the parallel trainer. */
package io.djltp.training;
