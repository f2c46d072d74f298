/** Contains the tests of the collective operations, and what all tests of the module share. */
package io.djltp.collective;
