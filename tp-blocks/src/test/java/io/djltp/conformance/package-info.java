/** Cases that the test suites and the known defects of other systems suggest. */
package io.djltp.conformance;
